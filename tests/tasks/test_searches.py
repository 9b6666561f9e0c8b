"""MLflow's searches as links: to the server that the runs went to, without its password."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tasks.tracking.searches import Search, note_experiment, run_search, table_search

FILTER = "tags.`Table 1` = 'true' and tags.scale = 'testbed' and tags.kind = 'row'"


def test_a_link_opens_the_rows_of_a_table_on_the_server(tmp_path: Path) -> None:
    note_experiment(tmp_path, "segment", "http://lab:secret@127.0.0.1:5000/", "17")
    found = table_search(tmp_path, "segment", "Table 1", "testbed")
    assert found is not None
    assert found.link is not None
    parts = urlsplit(found.link)
    assert (parts.netloc, parts.path) == ("127.0.0.1:5000", "/")
    place, _, query = parts.fragment.partition("?")
    assert place == "/experiments/17/runs"
    assert parse_qs(query) == {"searchFilter": [FILTER]}


def test_without_a_server_the_filter_alone_is_there(tmp_path: Path) -> None:
    note_experiment(tmp_path, "segment", f"sqlite:///{tmp_path}/mlflow.db", "1")
    found = table_search(tmp_path, "segment", "Table 1", "testbed")
    assert found is not None
    assert (found.filter, found.link) == (FILTER, None)


def test_the_runs_of_one_row_and_seed_are_found_by_their_folder(tmp_path: Path) -> None:
    assert run_search(tmp_path, "segment", "results/x") is None, "never mirrored"
    note_experiment(tmp_path, "segment", "http://127.0.0.1:5000", "17")
    found = run_search(tmp_path, "segment", "results/x")
    link = "http://127.0.0.1:5000/#/experiments/17/runs?searchFilter=tags.path%20%3D%20%27results%2Fx%27"
    assert found == Search("tags.path = 'results/x'", link)
