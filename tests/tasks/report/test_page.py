"""The page: whole, self-contained, escaped, and true to the tables."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from urllib.parse import quote

import pytest
from markupsafe import escape

from rlhf_core.errors import DataError
from tasks import tables
from tasks.graph.expected import clock
from tasks.report.__main__ import write_report
from tasks.report.page import read_report, render
from tasks.report.rows_of_all_papers import rows_by_sft_model
from tasks.running.artifacts import digest, read_json, read_jsonl, write_json, write_jsonl
from tasks.tracking.searches import note_experiment
from tests.tasks.report.fixture_results import SCRIPT, sign


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


def test_the_first_screen_has_verdicts_and_a_picture_and_papers_are_folded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    first, across, paper = (text.index(mark) for mark in ('class="lead"', 'id="across"', '<details class="fold">'))
    assert first < across < paper
    lead = text[first:across]
    assert re.search(r"\d+ of \d+ comparisons confirm what the papers print", lead)
    assert lead.count('<span class="track">') == 14
    assert "segment/segment" in lead
    assert "<details open" not in text


def test_a_count_of_none_has_no_colour(page: Path) -> None:
    counts = re.findall(
        r'<div class="claim( contradicted)?"><strong>(\d+)</strong><span>contradicted', page.read_text()
    )
    assert "0" in [count for _, count in counts]
    assert all(bool(coloured) == (count != "0") for coloured, count in counts)


def test_what_was_not_run_is_a_line_with_the_command_that_runs_it(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    made = root / "segment/tables/result/figures.json"
    figures = read_json(made)["figures"]
    for figure in figures[-2:]:
        figure |= {"status": "not run", "missing": ["dpo"]}
    write_json(made, {"figures": figures})
    sign(root / "segment/tables")
    text = write_report(root, tmp_path / "page").read_text(encoding="utf-8")
    line = next(part for part in text.split('<p class="absent">') if f'id="segment-{figures[-1]["key"]}"' in part)
    assert f'id="segment-{figures[-2]["key"]}"' in line
    assert "rewardsmith run segment --full</code>" in line.split("</p>")[0]
    table = text.split('id="segment-table-6"')[1].split("</article>")[0]
    assert re.search(r"\d+ rows? without results: <code>rewardsmith run segment [\w -]+</code>", table)


def test_alarms_are_on_the_first_screen(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    alarm = {"step": 7, "kind": "kl", "since": 2, "message": "kl is 9"}
    shutil.copytree(root / "segment/policy/bandit/0", root / "mixed/policy/my-row/0")
    write_jsonl(root / "mixed/policy/my-row/0/result/alarms.jsonl", [alarm])
    assert [each.says for each in read_report(root).alarmed] == ["kl at step 7"]
    lead = write_report(root, tmp_path / "page").read_text(encoding="utf-8").split('id="across"')[0]
    assert "results/testbed/mixed/policy/my-row/0</a>: kl at step 7" in lead


def test_only_primary_cells_show_an_effect_with_its_verdict(page: Path, results: Path) -> None:
    text = page.read_text(encoding="utf-8")
    table = text.split('id="segment-table-1"')[1].split("</article>")[0]
    made = read_json(results / "segment" / "tables" / "result" / "tables.json")["tables"][0]
    compared = [row["cells"]["lc_win_rate_vs_sft"] for row in made["rows"] if not row["is_main"]]
    assert len(re.findall(r'<span class="se effect">[-+]\d+\.\d+ \[', table)) == len(compared) == 6
    words = r'<span class="se effect">(?:above|below|sees only effects above \d|2 worlds cannot decide it)'
    assert len(re.findall(words, table)) == len(compared)
    assert "<sup>" not in table
    assert table.count("exploratory: settings were made while looking at these seeds.") == 1


def test_runs_lead_to_path_digest_and_commit(page: Path, results: Path) -> None:
    row = page.read_text(encoding="utf-8").split('id="run-segment-policy-segment-1"')[1].split("</tr>")[0]
    assert "segment/policy/segment/1" in row
    assert digest(results / "segment/policy/segment/1/result") in row
    assert "0123456789ab" in row


def test_a_run_shows_its_first_answers(page: Path, results: Path) -> None:
    texts = page.read_text(encoding="utf-8").split('id="run-segment-policy-segment-1"')[1].split("</details>")[0]
    answers = read_jsonl(results / "segment/policy/segment/1/result/generations.jsonl")
    assert "3 answers" in texts
    for answer in answers[:3]:
        assert escape(answer["response"]) in texts


def test_each_table_leads_to_its_runs_in_mlflow(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed").parents[1]
    note_experiment(root, "segment", "http://127.0.0.1:5000", "3")
    text = write_report(root / "results" / "testbed", tmp_path / "page").read_text(encoding="utf-8")
    table = text.split('id="segment-table-6"')[1].split("</article>")[0]
    assert (
        'href="http://127.0.0.1:5000/#/experiments/3/runs?searchFilter=tags.%60Table%206%60%20%3D%20%27true%27' in table
    )


def test_each_run_leads_to_mlflow(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed").parents[1]
    note_experiment(root, "segment", "http://127.0.0.1:5000", "3")
    report = read_report(root / "results" / "testbed")
    text = render(report)
    for anchor in ("run-segment-policy-segment-1", "run-shared-sft-phi3-mini-0"):
        row = text.split(f'id="{anchor}"')[1].split("</tr>")[0]
        query = quote(f"tags.path = '{report.runs[anchor].path}'", safe="")
        assert f'href="http://127.0.0.1:5000/#/experiments/3/runs?searchFilter={query}"' in row


def test_published_numbers_have_columns_of_their_own(page: Path) -> None:
    table = page.read_text(encoding="utf-8").split('id="segment-table-1"')[1].split("</table>")[0]
    row = table.split('<th scope="row">Segment (Ours)')[1].split("</tr>")[0]
    assert re.findall(r'<td class="n printed main">([^<]*)</td>', row)[:2] == ["31.05", "34.53"]
    assert len(re.findall(r'<th scope="col" class="n printed"', table)) == row.count('class="n printed main"') == 6
    assert "31.05" not in re.sub(r'<td class="n printed.*?</td>', "", row)


def test_claims_without_results_are_folded(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    made = root / "segment/tables/result/figures.json"
    figures = read_json(made)["figures"]
    rows = next(figure for figure in figures if figure["kind"] == "claims")["blocks"][0]["rows"]
    rows[0] |= {"verdict": "not run", "text": "<b>bold</b> claims"}
    absent = sum(row["verdict"] == "not run" for row in rows)
    write_json(made, {"figures": figures})
    sign(root / "segment/tables")
    text = write_report(root, tmp_path / "page").read_text(encoding="utf-8")
    fold = text.split(f"<summary>{absent} claim")[1].split("</details>")[0]
    assert "without results</summary>" in fold
    assert "&lt;b&gt;bold&lt;/b&gt; claims" in fold


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
    assert inside.seconds > 0
    assert all(run.record and not Path(run.path).is_absolute() for run in inside.runs.values())


def test_the_time_at_the_head_is_that_of_the_table_of_stages(results: Path, page: Path) -> None:
    """Stages without a cell of their own, such as data, count too."""
    report = read_report(results)
    assert {kind.kind for kind in report.times} > {"policy", "data"}
    total, stages = sum(kind.seconds for kind in report.times), sum(kind.stages for kind in report.times)
    head = page.with_name("report.md").read_text(encoding="utf-8").split("##")[0]
    assert f"; 2026-03-01; cpu; {clock(total)} in {stages} stages.\n" in head
    assert f"<dt>time of all stages</dt><dd>{clock(total)}</dd>" in page.read_text(encoding="utf-8")


def test_rows_of_several_papers_stand_side_by_side(results: Path, tmp_path: Path) -> None:
    """A row of another study joins those of the same SFT model, in the order of the true win rate."""
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    best = root / "mixed" / "policy" / "my-row" / "0"
    shutil.copytree(root / "segment" / "policy" / "segment" / "0", best)
    shutil.copytree(best, root / "hackability" / "policy" / "length-vanilla" / "0")
    metrics = read_json(best / "result" / "metrics.json")
    write_json(best / "result" / "metrics.json", metrics | {"win_rate_vs_sft": 99.0})
    sign(root / "mixed")
    rows = rows_by_sft_model(root)["phi3-mini"]
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


def test_rows_of_the_demo_stand_beside_a_users_own(results: Path, tmp_path: Path) -> None:
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    own, demo = (root / group / "policy" / "my-row" / "0" for group in ("my-study", "demo"))
    for run in (own, demo):
        shutil.copytree(root / "segment" / "policy" / "segment" / "0", run)
        record = read_json(run / "record" / "record.json")
        record["inputs"] = {name.replace("phi3-mini", "demo"): value for name, value in record["inputs"].items()}
        write_json(run / "record" / "record.json", record)
    assert {row.group for row in rows_by_sft_model(root)["demo"]} == {"my-study", "demo"}
    shutil.rmtree(root / "my-study")
    assert "demo" not in rows_by_sft_model(root), "alone they have a part of their own"


def test_markdown_has_every_table_and_no_html(page: Path) -> None:
    text = (page.parent / "report.md").read_text(encoding="utf-8")
    for number in range(1, 8):
        assert f"### Table {number}." in text
    assert "<script" not in text


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no tables stage"):
        read_report(tmp_path)


def test_a_rehearsals_numbers_and_titles_say_so(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results" / "rehearsal-small"
    shutil.copytree(results, copy)
    tables.build(copy, "segment", (0, 1), copy / "segment" / "tables")
    made = read_json(copy / "segment/tables/result/tables.json")
    cells = [cell for table in made["tables"] for row in table["rows"] for cell in row["cells"].values()]
    assert any(cell["status"] == "measured" for cell in cells)
    assert {cell["partial"] for cell in cells} == {"rehearsal"}
    figures = read_json(copy / "segment/tables/result/figures.json")["figures"]
    assert all(figure["title"].startswith("Rehearsal: ") for figure in figures)
    page = write_report(copy, tmp_path / "page")
    assert "<title>REHEARSAL" in page.read_text()
    assert "Rehearsal: Measured beside published" in page.read_text()
    assert "**Rehearsal: no number here is a result.**" in page.with_name("report.md").read_text()
