"""The page in a browser: no complaint of its script, nothing sideways, and what a reader can do with its numbers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.report.__main__ import write_report
from tasks.running.artifacts import read_json, read_jsonl, write_json
from tests.browser import WIDTHS, Tab, browsing, look, needs_browser
from tests.tasks.report.fixture_results import SCRIPT

pytestmark = [pytest.mark.platform, needs_browser]

#: Of an element of a drawing, the place in the window.
PLACE = """(() => {
  const drawing = document.querySelector(%s), [x, y] = %s;
  drawing.scrollIntoView({ block: "center", behavior: "instant" });
  const place = new DOMPoint(x, y).matrixTransform(drawing.getScreenCTM());
  return [place.x, place.y];
})()"""


@pytest.fixture
def tab(page: Path, tmp_path: Path) -> Iterator[Tab]:
    with browsing(tmp_path, WIDTHS[0]) as tab:
        tab.open(page.as_uri())
        tab.unfold()
        yield tab
        assert not tab.complaints


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_has_no_errors_and_no_more_width_than_the_window(page: Path, tmp_path: Path, width: int) -> None:
    shown = look(page.as_uri(), tmp_path, width)
    assert not shown.complaints
    assert shown.colours > 50
    assert shown.width <= width
    assert "<title>Rewardsmith report" in shown.dom
    assert '<ul id="found" role="listbox" aria-label="Found" hidden="">' in shown.dom


def test_a_complaint_is_heard(tmp_path: Path) -> None:
    (tmp_path / "wrong.html").write_text("<script>null.value</script><img src='missing.png'>")
    with browsing(tmp_path, WIDTHS[0]) as tab:
        tab.open((tmp_path / "wrong.html").as_uri())
        assert any("TypeError" in said for said in tab.complaints)
        assert any("missing.png" in said for said in tab.complaints)


def test_the_page_is_small_and_loads_within_a_second(page: Path, tmp_path: Path) -> None:
    assert page.stat().st_size < 2_000_000
    with browsing(tmp_path, WIDTHS[0]) as tab:
        times = []
        for number in range(3):
            tab.open(f"{page.as_uri()}?{number}")
            times.append(tab.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
    assert 0 < min(times) < 1000


def test_dark_pages_are_dark_and_the_button_changes_them(page: Path, tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    with browsing(tmp_path, WIDTHS[0], dark=True) as tab:
        tab.open(page.as_uri())
        dark = tab.evaluate(colour)
        tab.click("#theme")
        light = tab.evaluate(colour)
    assert dark == "rgb(21, 24, 28)"
    assert light == "rgb(254, 254, 253)"


def test_the_page_can_be_read_without_its_script(page: Path, tmp_path: Path) -> None:
    with browsing(tmp_path, WIDTHS[1], script=False) as tab:
        tab.open(page.as_uri())
        assert tab.evaluate("document.querySelectorAll('.sortable, .filter').length") == 0
        assert not tab.texts(".find, #theme, #published")
        assert "comparisons confirm what the papers print" in tab.texts(".headline")[0]
        assert len(tab.texts(".rates .who")) == 14
        assert tab.evaluate("document.documentElement.scrollWidth") <= WIDTHS[1]
        tab.click("#segment > details > summary")
        assert "31.05" in tab.texts("#segment-table-1 td.printed")


def test_the_page_finds_rows_by_their_words(tab: Tab, page: Path) -> None:
    def found(words: str) -> list[str]:
        tab.open(f"{page.as_uri()}?find={words}")
        return tab.texts("#found button")

    assert any("Bandit as Segment" in name for name in found("bandit+as+segment"))
    assert found("table+7")[0].startswith("Table 7")
    assert found("no+such+row") == []


def test_published_numbers_can_be_hidden(tab: Tab) -> None:
    cells = "[...document.querySelectorAll('#segment-table-1 > .scroll tr.benchmarks > *')]"
    heads = f"{cells}.reduce((sum, one) => sum + one.colSpan, 0)"

    def columns() -> int:
        return len(tab.texts("#segment-table-1 > .scroll thead tr:last-child th"))

    shown = columns()
    assert "31.05" in tab.texts("#segment-table-1 td")
    assert tab.evaluate(heads) == shown
    tab.click("#published")
    assert "31.05" not in tab.texts("#segment-table-1 td")
    assert tab.evaluate(heads) == columns() == shown - 6
    tab.click("#published")
    assert "31.05" in tab.texts("#segment-table-1 td")
    assert tab.evaluate(heads) == columns() == shown


def test_rows_are_sorted_by_a_click_on_a_columns_head(tab: Tab) -> None:
    head = "#across thead th:nth-child(5)"

    def column() -> list[float]:
        return [float(text.split()[0]) for text in tab.texts("#across tbody td:nth-child(5)")]

    def names() -> list[str]:
        return tab.texts("#across tbody th")

    order, before = names(), column()
    assert before != sorted(before)
    tab.click(head)
    assert column() == sorted(before, reverse=True)
    tab.click(head)
    assert column() == sorted(before)
    assert tab.evaluate(f"document.querySelector('{head}').ariaSort") == "ascending"
    tab.click(head)
    assert names() == order
    tab.click("#across thead th:first-child")
    assert names() == [order[0], *sorted(order[1:], key=lambda name: name.split("\n")[0])]


def test_sorted_rows_keep_to_their_backbone_and_empty_cells_are_last(results: Path, tmp_path: Path) -> None:
    """Rows of two SFT models, one of them without a KL."""
    root = shutil.copytree(results, tmp_path / "results" / "testbed")
    for record in root.glob("segment/policy/phi31-*/*/record/record.json"):
        write_json(record, read_json(record) | {"inputs": {"results/testbed/shared/sft/phi31/0/result": "ab"}})
    for seed in (0, 1):
        metrics = root / f"segment/policy/phi31-token/{seed}/result/metrics.json"
        write_json(metrics, {name: value for name, value in read_json(metrics).items() if name != "kl"})
    page = write_report(root, tmp_path / "page")
    with browsing(tmp_path, WIDTHS[0]) as tab:
        tab.open(page.as_uri())
        tab.click("#across thead th:nth-child(5)")
        names = [name.split("\n")[0] for name in tab.texts("#across tbody th")]
        cells = tab.evaluate("[...document.querySelectorAll('#across tbody tr')].map((row) => row.cells[4]?.innerText)")
    second = names.index("phi31")
    values = [float(text.split()[0]) for text in cells[second + 1 : -1]]
    assert names[0] == "phi3-mini"
    assert set(names[second + 1 :]) == {"phi31-bandit", "phi31-token", "phi31-segment"}
    assert values == sorted(values, reverse=True)
    assert (names[-1], cells[-1]) == ("phi31-token", "")


def test_rows_are_filtered_by_typing(tab: Tab) -> None:
    tab.type("#across .filter input", "segment as")
    names = [name.split("\n")[0] for name in tab.texts("#across tbody th")]
    assert sorted(names) == ["bandit-as-segment", "phi3-mini", "segment-as-bandit"]
    assert tab.texts("#across output") == ["2 of 14"]
    tab.type("#across .filter input", "no such row")
    assert tab.texts("#across tbody th") == []
    tab.type("#across .filter input", " ")
    assert len(tab.texts("#across tbody th[scope=row]")) == 14


def test_a_curve_says_its_row_and_value_under_the_pointer(tab: Tab, results: Path) -> None:
    figures = read_json(results / "segment/tables/result/figures.json")["figures"]
    panel = next(figure for figure in figures if figure["kind"] == "panels")["panels"][0]
    series, drawing = panel["series"][0], "#segment svg[data-curves]"
    curves = tab.evaluate(f"document.querySelector({json.dumps(drawing)}).dataset.curves")
    x, y, step, value, *_ = json.loads(curves)[0]["points"][3]
    assert (step, value) == (series["x"][3], pytest.approx(series["y"][3], rel=1e-3))
    at = tab.evaluate(PLACE % (json.dumps(drawing), json.dumps([x, y])))
    tab.settle()
    tab.move(*at)
    said = tab.texts("#tip")[0].split("\n")
    assert said[0] == series["label"]
    assert said[1] == f"{panel['x_label']} {step}"
    assert said[2].startswith(f"{panel['title']}, {panel['y_label']}: {value:g}")
    tab.move(5, 500)
    assert tab.texts("#tip") == []


def test_the_marked_place_is_on_the_drawn_line(tab: Tab) -> None:
    """The first point of a line is where the browser has drawn its path's beginning."""
    script = """(() => { const drawing = document.querySelector("#segment svg[data-curves]");
      const [x, y] = JSON.parse(drawing.dataset.curves)[0].points[0];
      const starts = [...drawing.querySelectorAll("[id*=line2d] > path")].map((path) => path.getPointAtLength(0));
      return Math.min(...starts.map((start) => Math.hypot(start.x - x, start.y - y))); })()"""
    assert tab.evaluate(script) < 0.2


def test_a_cell_leads_to_its_runs_and_their_texts(tab: Tab, results: Path) -> None:
    tab.click('#segment-table-1 a[href="#run-segment-policy-segment-0"]')
    shown = "\n".join(tab.texts("#sheet"))
    assert "seed 0: " in shown
    for seed in (0, 1):
        assert f"results/testbed/segment/policy/segment/{seed}" in shown
        answer = read_jsonl(results / f"segment/policy/segment/{seed}/result/generations.jsonl")[0]
        assert answer["response"] in shown
    assert SCRIPT in shown
    assert tab.evaluate("document.title").startswith("Rewardsmith")
    tab.click("#sheet button")
    assert tab.texts("#sheet") == []
