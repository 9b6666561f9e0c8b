"""The report's page: whole, self-contained, escaped, and true to the tables; in a browser, too."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from markupsafe import Markup

from rlhf_core.errors import DataError
from tasks import tables
from tasks.report.__main__ import write_report
from tasks.report.page import Bullets, Fold, ReportPage, Section, Text, Tiles, html, link, markdown
from tasks.report.report_page import report_page
from tasks.report.table import ShownTable, TableCell, TableColumn, TableRow
from tasks.running.artifacts import digest, read_json, write_json
from tests.browser import WIDTHS, browsing, look, needs_browser
from tests.tasks.report.fixture_results import SCRIPT, sign

EVIL = '<script>alert("x")</script> | &'


@pytest.fixture(scope="module")
def text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.fixture
def tree(results: Path, tmp_path: Path) -> Path:
    """A copy of the results that a test may change."""
    return Path(shutil.copytree(results, tmp_path / "results" / "testbed"))


def part(text: str, key: str, end: str = "</article>") -> str:
    return text.split(f'id="{key}"')[1].split(end)[0]


def written(results: Path) -> str:
    return write_report(results, results.parents[1] / "page").read_text(encoding="utf-8")


def test_every_kind_of_part_is_escaped_on_the_page_and_in_markdown() -> None:
    cell = TableCell(EVIL, EVIL, (EVIL,), EVIL, "confirmed", link="#a", tip=EVIL)
    row = TableRow(EVIL, (cell,), (EVIL,), EVIL, anchor="a")
    table = ShownTable((TableColumn(EVIL, group=EVIL, note=EVIL, has_published=True),), (row,), EVIL, EVIL)
    parts = (Text(EVIL), Bullets((EVIL, link("#a", EVIL))), Tiles(((EVIL, EVIL, ""),)), table)
    section = Section(EVIL, "key", (*parts, Fold(EVIL, (Text(EVIL),))))
    page = ReportPage(EVIL, EVIL, (Text(Markup("<b>bold</b>")),), (section,), EVIL)
    for made in (html(page), markdown(page)):
        assert "<script>alert" not in made
        assert made.count("&lt;script&gt;alert") > 10
    assert "<b>bold</b>" in html(page)
    assert r"\| &amp; | " in markdown(page), "a pipe ends no cell"


def test_generated_text_is_escaped_and_nothing_is_loaded(text: str) -> None:
    assert SCRIPT not in text
    assert "&lt;script&gt;document.title" in text
    assert text.count("<script>") == 1
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy
    assert "default-src 'none'" in policy.group(1)
    assert re.fullmatch(r" 'sha256-[\w+/=]+'", policy.group(1).split("script-src")[1].split(";")[0])
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]+"', text)
    assert "@import" not in text
    assert not re.findall(r"url\((?!#)", text)


def test_every_link_within_the_page_has_its_target(text: str) -> None:
    targets = re.findall(r'\bid="([^"]+)"', text)
    assert len(targets) == len(set(targets))
    links = set(re.findall(r'href="#([^"]+)"', text))
    assert links <= set(targets)
    assert "run-segment-policy-segment-0" in links


def test_the_first_screen_has_verdicts_and_papers_are_folded(text: str) -> None:
    first, paper = (text.index(mark) for mark in ('class="lead"', '<details class="fold">'))
    assert re.search(r"\d+ of \d+ comparisons confirm what the papers print", text[first:paper])
    assert "<details open" not in text


def test_what_was_not_run_says_so_with_the_command_that_runs_it(tree: Path) -> None:
    made = tree / "segment/tables/result/figures.json"
    figures = read_json(made)["figures"]
    figures[-1] |= {"status": "not run", "missing": ["dpo"]}
    claims = next(figure for figure in figures if figure["kind"] == "claims")["blocks"][0]["rows"]
    claims[0] |= {"verdict": "not run", "text": "<b>bold</b> claims"}
    absent = sum(row["verdict"] == "not run" for row in claims)
    write_json(made, {"figures": figures})
    sign(tree / "segment/tables")
    text = written(tree)
    assert (
        figures[-1]["title"].split(".")[0]
        in text.split('<p class="absent">Not run: ')[1].split("<code>rewardsmith run segment --full")[0]
    )
    table = part(text, "segment-table-6")
    assert table.count("not run") == 8
    assert re.search(r"\d+ rows? without results: <code>rewardsmith run segment [\w -]+</code>", table)
    assert "&lt;b&gt;bold&lt;/b&gt; claims" in text.split(f"<summary>{absent} claim")[1].split("</details>")[0]


def test_runs_lead_to_path_digest_and_commit(text: str, results: Path) -> None:
    row = part(text, "run-segment-policy-segment-1", "</tr>")
    assert "segment/policy/segment/1" in row
    assert digest(results / "segment/policy/segment/1/result")[:12] in row
    assert "0123456789ab" in row


def test_a_changed_cell_is_refused(tree: Path) -> None:
    file = tree / "segment" / "tables" / "result" / "tables.json"
    file.write_text(file.read_text().replace('"measured"', '"not run"', 1))
    with pytest.raises(DataError, match=r"tables.json: it changed after its stage had ended"):
        report_page(tree)


def test_a_rehearsals_numbers_and_titles_say_so(results: Path, tmp_path: Path) -> None:
    copy = tmp_path / "results" / "rehearsal-small"
    shutil.copytree(results, copy)
    tables.build(copy, "segment", (0, 1), copy / "segment" / "tables")
    made = read_json(copy / "segment/tables/result/tables.json")
    cells = [cell for table in made["tables"] for row in table["rows"] for cell in row["cells"].values()]
    assert {cell["partial"] for cell in cells} == {"rehearsal"}
    figures = read_json(copy / "segment/tables/result/figures.json")["figures"]
    assert all(figure["title"].startswith("Rehearsal: ") for figure in figures)
    text = written(copy)
    assert "<title>REHEARSAL" in text
    assert "Rehearsal: Measured beside published" in text
    assert "no number on this page is a result" in (tmp_path / "page" / "report.md").read_text()


@pytest.mark.platform
@needs_browser
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_shows_the_page_without_errors(page: Path, tmp_path: Path, width: int) -> None:
    shown = look(page.as_uri(), tmp_path, width)
    assert not shown.complaints
    assert shown.colours > 50
    assert shown.width <= width


@pytest.mark.platform
@needs_browser
def test_a_number_leads_to_its_run_and_a_head_sorts(page: Path, tmp_path: Path) -> None:
    with browsing(tmp_path, WIDTHS[0]) as tab:
        tab.open(f"{page.as_uri()}#segment-table-1")
        assert tab.evaluate("document.querySelector('#segment details.fold').open")
        counts = "#segment table tbody td:nth-child(2)"
        tab.click("#segment table thead th:nth-child(2)")
        confirmed = [int(text) for text in tab.texts(counts)[:7]]
        assert confirmed == sorted(confirmed, reverse=True)
        tab.click("#segment-table-1 a.value")
        assert tab.evaluate("document.querySelector('#runs details.fold').open")
        tab.open(page.as_uri())
        colour = "getComputedStyle(document.body).backgroundColor"
        light = tab.evaluate(colour)
        tab.click("#theme")
        assert tab.evaluate(colour) != light
