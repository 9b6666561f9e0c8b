"""Figure data comes from the stage outputs, and says what is missing."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tasks.report.charts import panels_svg
from tasks.report.figure_data import FigureData, Panel, Series
from tasks.report.figures import paper_figures, recorded_figures
from tasks.report.figures_numbers import shares_before_ends
from tasks.report.figures_texts import token_spans
from tasks.report.numbers import steps_to_answer
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import write_jsonl
from tests.tasks.report.claim_results import EXAMPLE
from tests.tasks.report.fixture_results import write


@pytest.fixture(scope="module")
def figures(results: Path) -> dict[str, FigureData]:
    return {figure.key: figure for figure in paper_figures("segment", ResultTree(results, (0, 1)))}


def test_rows_that_were_not_run_are_named(figures: dict[str, FigureData]) -> None:
    assert figures["figure-5"].missing == ["llama3-bandit", "llama3-token", "llama3-segment"]
    assert [panel["title"] for panel in figures["figure-5"].to_json()["panels"]] == ["Phi3.1-mini-SFT"]


@pytest.mark.parametrize(
    ("tokens", "response", "expected"),
    [
        (["The", " cat", "</s>"], "The cat", [(0, 3), (3, 7), (7, 7)]),
        ([" The", " cat"], "The cat", [(0, 3), (3, 7)]),
        (["a", "�", "�", " b"], "aé b", [(0, 1), (1, 2), (2, 2), (2, 4)]),
    ],
)
def test_token_spans(tokens: list[str], response: str, expected: list[tuple[int, int]]) -> None:
    spans = token_spans(tokens, response)
    assert "".join(response[a:b] for a, b in spans) == response
    if "�" not in tokens:
        assert spans == expected


def test_two_axes_are_told_apart_in_the_legend_and_drawn_large() -> None:
    pair = [Series("PAR", [1, 2], [0.5, 0.7], colour=0), Series("PAR", [1, 2], [50.0, 60.0], None, "dashed", 0, True)]
    two, one = Panel("p", "step", "proxy", pair, right_label="win rate"), Panel("p", "step", "proxy", pair[:1])
    large, small = (panels_svg("f", "t", [panel]) for panel in (two, one))
    assert large.count(">win rate<") == 2, "on its axis and in the legend"
    width = [int(re.search(r"max-width:(\d+)px", svg).group(1)) for svg in (large, small)]  # type: ignore[union-attr]
    assert width[0] > 1.5 * width[1]


def test_intervals_name_their_lines_from_top_to_bottom() -> None:
    ends = Series("at the end", [60.0, 40.0], ["PAR", "Vanilla"], [2.0, 3.0], style="intervals", colour=0)
    guide = Series("the SFT model", [50.0, 50.0], [0.0, 1.0], style="guide")
    drawn = panels_svg("f", "t", [Panel("p", "win rate", "", [ends, guide])])
    places = re.findall(r'y="([\d.]+)"[^>]*>(PAR|Vanilla)<', drawn)
    heights = {name: float(height) for height, name in places}
    assert heights["PAR"] < heights["Vanilla"]
    assert ">the SFT model<" in drawn


def answer(
    number: int, *, right: bool, first_error: int | None, text: str = "1 + 1 = 3.\nThe answer is 3."
) -> dict[str, Any]:
    made = {"benchmark": "gsm8k", "id": str(number), "prompt": "What is 1 + 1?", "response": text, "steps": 2}
    return made | {"extracted": "3", "right": right, "first_error": first_error}


def result(root: Path, kind: str, name: str, metrics: dict[str, float], **files: list[dict[str, Any]]) -> None:
    folder = root / ("shared" if kind in ("sft", "teacher") else "rlmec") / kind / name / "0" / "result"
    folder.mkdir(parents=True)
    (folder / "metrics.json").write_text(json.dumps(metrics))
    for file, rows in files.items():
        write_jsonl(folder / f"{file}.jsonl", rows)


def test_distances_count_steps_from_the_first_error_to_the_answer() -> None:
    rows = [answer(0, right=True, first_error=None), answer(1, right=False, first_error=0)]
    rows += [answer(2, right=False, first_error=1), answer(3, right=False, first_error=2)]  # what is missing comes last
    assert steps_to_answer(rows) == [1, 0, 0]


def test_a_right_answer_by_a_wrong_step_is_coloured_by_its_steps_and_comes_last(tmp_path: Path) -> None:
    before = [answer(n, right=False, first_error=0) for n in (1, 2)]
    after = [answer(1, right=True, first_error=1), answer(2, right=True, first_error=None)]
    result(tmp_path, "sft", "rlmec-math", {}, generations=before)
    result(tmp_path, "policy", "math-rlmec", {}, generations=after)
    blocks = next(f for f in paper_figures("rlmec", ResultTree(tmp_path, (0,))) if f.key == "table-10").blocks
    assert [block["title"] for block in blocks] == ["gsm8k, 2", "gsm8k, 1"]
    assert [block["models"][1]["rewards"] for block in blocks] == [[1.0, 1.0], [1.0, -1.0]]


def test_tokens_that_close_a_clause_are_apart_from_the_others() -> None:
    worth = ((3, 0.1), (2, 0.1), (1, 0.1), (0, 0.9), (0, 0.3))
    assert shares_before_ends(EXAMPLE) == [(distance, pytest.approx(share / 0.3)) for distance, share in worth]


def test_the_time_of_training_comes_from_the_records(tmp_path: Path) -> None:
    out = tmp_path / "sentence" / "policy" / "sentence" / "0"
    write(out / "result" / "metrics.json", {})
    write(out / "record" / "record.json", {"seconds": 30.0})
    (figure,) = recorded_figures("sentence", ResultTree(tmp_path, (0,)))
    assert [(series.x, series.y) for series in figure.panels[0].series] == [(["sat-3l"], [30.0])]
    assert figure.missing == ["sat-1l", "sat-9l"]
