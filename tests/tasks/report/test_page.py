"""The page: whole, self-contained, escaped, and true to the tables."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tasks import tables
from tasks.report.__main__ import write_report
from tasks.report.across import across
from tasks.report.page import read_report
from tasks.running.artifacts import read_json, write_json
from tasks.tracking.searches import note_experiment
from tests.browser import WIDTHS, look, needs_browser
from tests.tasks.report.fixture_results import SCRIPT


def test_generated_text_is_escaped(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert SCRIPT not in text
    assert "&lt;script&gt;document.title" in text
    assert text.count("<script>") == 1


def test_the_policy_allows_the_pages_own_script_only(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert "default-src 'none'" in policy.group(1)
    script = policy.group(1).split("script-src")[1].split(";")[0]
    assert re.fullmatch(r" 'sha256-[\w+/=]+'", script)


def test_nothing_is_loaded_from_elsewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]+"', text)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)


def test_every_link_within_the_page_has_its_target(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    targets = re.findall(r'\bid="([^"]+)"', text)
    assert len(targets) == len(set(targets))
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(targets)
    assert "run-segment-policy-segment-0" in links


def test_cells_that_were_not_run_say_so(page: Path, results: Path) -> None:
    text = page.read_text(encoding="utf-8")
    counts = read_json(results / "segment" / "tables" / "result" / "tables.json")["counts"]
    assert counts["not run"] > 0
    table = text.split('id="segment-table-6"')[1].split("</article>")[0]
    assert table.count("not run") == 8


def test_only_primary_cells_show_an_effect_with_its_verdict(page: Path, results: Path) -> None:
    text = page.read_text(encoding="utf-8")
    table = text.split('id="segment-table-1"')[1].split("</article>")[0]
    made = read_json(results / "segment" / "tables" / "result" / "tables.json")["tables"][0]
    compared = [row["cells"]["lc_win_rate_vs_sft"] for row in made["rows"] if not row["is_main"]]
    assert len(re.findall(r'<span class="se effect">[-+]\d+\.\d+ \[', table)) == len(compared) == 6
    words = r'<span class="se effect">(?:above|below|sees only effects above \d)'
    assert len(re.findall(words, table)) == len(compared)
    assert "<sup>" not in table
    assert table.count("exploratory: settings were made while looking at these seeds.") == 1


def test_runs_lead_to_path_digest_and_commit(page: Path) -> None:
    row = page.read_text(encoding="utf-8").split('id="run-segment-policy-segment-1"')[1].split("</tr>")[0]
    assert "segment/policy/segment/1" in row
    assert "01" * 32 in row
    assert "0123456789ab" in row


def test_each_table_leads_to_its_runs_in_mlflow(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed").parents[1]
    note_experiment(root, "segment", "http://127.0.0.1:5000", "3")
    text = write_report(root / "results" / "testbed", tmp_path / "page").read_text(encoding="utf-8")
    table = text.split('id="segment-table-6"')[1].split("</article>")[0]
    assert 'href="http://127.0.0.1:5000/#/experiments/3/runs?searchFilter=tags.table%20%3D%20%27Table%206%27' in table


def test_the_page_says_where_the_time_goes(page: Path) -> None:
    part = page.read_text(encoding="utf-8").split('<section id="time">')[1].split("</section>")[0]
    assert re.search(r'<th scope="row">policy</th><td class="n">\d+</td>', part)
    assert "Where the time goes" in (page.parent / "report.md").read_text(encoding="utf-8")


def test_the_header_states_constants_of_the_data(results: Path) -> None:
    report = read_report(results)
    assert report.constants["dialogue.bayes_ceiling.validation"] == 0.8
    assert report.provenance.first == "2026-03-01"


def test_a_report_made_in_another_folder_finds_its_runs(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = shutil.copytree(results, tmp_path / "tree" / "results" / "testbed").parent.parent
    monkeypatch.chdir(root)
    here = Path("results/testbed")
    tables.build(here, "segment", (0, 1), here / "segment" / "tables")
    inside = read_report(here)
    monkeypatch.chdir(tmp_path)
    assert read_report(root / here) == inside
    assert inside.provenance.minutes > 0
    assert all(run.record and not Path(run.path).is_absolute() for run in inside.runs.values())


def test_rows_of_several_papers_stand_side_by_side(results: Path, tmp_path: Path) -> None:
    """A row of another study joins those of the same SFT model, in the order of the true win rate."""
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    best = root / "mixed" / "policy" / "my-row" / "0"
    shutil.copytree(root / "segment" / "policy" / "segment" / "0", best)
    shutil.copytree(best, root / "hackability" / "policy" / "length-vanilla" / "0")
    metrics = read_json(best / "result" / "metrics.json")
    write_json(best / "result" / "metrics.json", metrics | {"win_rate_vs_sft": 99.0})
    rows = across(root)["phi3-mini"]
    assert {row.group for row in rows} == {"segment", "mixed"}
    assert (rows[0].name, rows[0].cells["win_rate_vs_sft"]) == ("my-row", (99.0, None))
    values = [row.cells["win_rate_vs_sft"][0] for row in rows if row.cells["win_rate_vs_sft"]]
    assert values == sorted(values, reverse=True)
    two = next(row for row in rows if row.name == "segment")
    assert set(two.runs.values()) == {f"results/testbed/segment/policy/segment/{seed}" for seed in (0, 1)}
    folders = [root.parent.parent / path for path in two.runs.values()]
    found = [read_json(folder / "result" / "metrics.json")["win_rate_vs_sft"] for folder in folders]
    assert two.cells["win_rate_vs_sft"] == pytest.approx((sum(found) / 2, abs(found[0] - found[1]) / 2))
    (root.parent.parent / "params/mixed/rows").mkdir(parents=True)
    (root.parent.parent / "params/mixed/rows.yaml").write_text("my-row: {title: <b>mine</b>}\n")
    text = write_report(root, tmp_path / "page").read_text(encoding="utf-8")
    assert "&lt;b&gt;mine&lt;/b&gt;" in text
    assert 'href="#run-mixed-policy-my-row-0"' in text
    assert 'id="run-mixed-policy-my-row-0"' in text
    assert "&lt;b&gt;mine&lt;/b&gt; | Mixed | 1 | 99.0" in (tmp_path / "page" / "report.md").read_text(encoding="utf-8")


def test_markdown_has_every_table_and_no_html(page: Path) -> None:
    text = (page.parent / "report.md").read_text(encoding="utf-8")
    for number in range(1, 8):
        assert f"### Table {number}." in text
    assert "<script" not in text


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tables stage"):
        read_report(tmp_path)


@pytest.mark.platform
@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page_without_errors(page: Path, tmp_path: Path, width: int) -> None:
    shown = look(page.as_uri(), tmp_path, width)
    assert not shown.complaints
    assert shown.colours > 50
    assert "<title>Rewardsmith report" in shown.dom
    assert '<ul id="found" role="listbox" aria-label="Found" hidden="">' in shown.dom


@pytest.mark.platform
@needs_browser
def test_the_page_finds_rows_by_their_words(page: Path, tmp_path: Path) -> None:
    def found(words: str) -> list[str]:
        dom = look(f"{page.as_uri()}?find={words}", tmp_path, WIDTHS[0]).dom
        listed = re.search(r'<ul id="found"[^>]*>(.*?)</ul>', dom, re.DOTALL)
        assert listed
        return re.findall(r"<button[^>]*>([^<]*)", listed.group(1))

    assert any("Bandit as Segment" in name for name in found("bandit+as+segment"))
    assert found("table+7")[0].startswith("Table 7")
    assert found("no+such+row") == []
