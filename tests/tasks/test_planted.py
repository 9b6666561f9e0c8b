"""Planted changes: each is found in the tree, and one planted in a copy is found by the golden values."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tasks.golden_runs import RUNS
from tests.tasks.planted import ROOT, Planted, copy_tree, not_planted, planted, planted_changes


@pytest.mark.parametrize("change", planted_changes(), ids=lambda change: str(change.what))
def test_every_planted_change_has_a_place_and_a_run(change: Planted) -> None:
    assert change.run in RUNS
    path, place = change.place(ROOT)
    assert path.read_text(encoding="utf-8")[place:].startswith(change.text)
    assert change.becomes != change.text


def test_a_text_in_no_place_or_several_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "one.py").write_text("def first():\n    return 1\n\n\ndef second():\n    return 1\n")
    with pytest.raises(LookupError, match=r"in one place, but it is found in: tasks/one.py, tasks/one.py"):
        Planted("both", "return 1", "return 2", "rloo").place(tmp_path)
    with pytest.raises(LookupError, match="found in: nowhere"):
        Planted("none", "return 3", "return 2", "rloo").place(tmp_path)
    with Planted("second", "return 1", "return 2", "rloo", within="def second").applied(tmp_path) as file:
        assert (tmp_path / file).read_text().endswith("def second():\n    return 2\n")
    assert (tmp_path / "tasks" / "one.py").read_text().count("return 1") == 2


def test_a_planted_change_is_found_and_an_unchanged_tree_is_not_suspected(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    change = next(change for change in planted_changes() if change.run == "dialogue")
    done = planted(change, tmp_path)
    assert done["found"]
    assert done["difference"] == "texts of choices/arc.jsonl"
    same = Planted("nothing", change.text, f"{change.text}  # as before", "dialogue")
    assert not planted(same, tmp_path)["found"]


def test_what_has_no_planted_change_is_named() -> None:
    change = next(change for change in planted_changes() if change.run == "rloo")
    left = not_planted([change])
    assert "policy" not in left["stages"]
    assert "prepare" in left["stages"]
    assert "rloo" not in left["optimisers"]
    assert "ppo" in left["optimisers"]
