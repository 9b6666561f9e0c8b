"""Figures of the Sentence paper from made-up stage outputs; every number here is invented."""

from __future__ import annotations

from typing import Any

import pytest

from tasks.report.figure_data import FigureData
from tasks.report.figures import paper_figures, recorded_figures
from tasks.report.outputs import ResultTree
from tests.tasks.report.fixture_results import write

TOKENS = ["It", " eats", " fish", ".", " Bye", "</s>"]
EXAMPLE: dict[str, Any] = {
    "id": "1",
    "kind": "normal",
    "prompt": "What does the cat eat?",
    "response": "It eats fish. Bye",
    "tokens": TOKENS,
    "rewards": [0.1, 0.1, 0.1, 0.9, 0.3, None],
    "segments": [[0, 1, 0.1], [1, 2, 0.1], [2, 3, 0.1], [3, 4, 0.9], [4, 5, 0.3]],
    "true_clauses": [[0, 14, "requested_true", 1.0], [14, 17, "closing", 0.2]],
}


def answers(text: str) -> list[dict[str, Any]]:
    row = {"benchmark": "alpaca", "id": "7", "turn": 1, "prompt": "Say it.", "response": text, "meta": {}}
    return [row, {**row, "benchmark": "mbpp_base", "response": f"def f():\n    return '{text}'", "right": True}]


@pytest.fixture(scope="module")
def figures(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FigureData]:
    root = tmp_path_factory.mktemp("results") / "testbed"
    for place, name in enumerate(("sentence", "response", "token")):
        bench = dict.fromkeys(("chat", "chat_hard", "safety", "reasoning", "average"), 60.0 + place)
        write(root / "sentence" / "reward_bench" / f"bench-{name}" / "0" / "result" / "metrics.json", bench)
        best = {f"{judge}/{data}/{n}": 50.0 + n for judge in ("judge", "second", "true") for data in ("alpaca", "arena")
                for n in (2, 4, 32)}  # fmt: skip
        write(root / "sentence" / "best_of_n" / f"best-of-n-{name}" / "0" / "result" / "metrics.json", best)
        policy = root / "sentence" / "policy" / name / "0"
        write(policy / "result" / "metrics.json", {"win_rate_vs_sft": 55.0})
        write(policy / "result" / "generations.jsonl", answers(f"by {name}"))
        write(policy / "record" / "record.json", {"seconds": 30.0 + place})
        model = root / "sentence" / "reward_model" / name / "0" / "result"
        write(model / "metrics.json", {"accuracy": 0.6})
        write(model / "examples.jsonl", [EXAMPLE])
    explored = root / "sentence" / "reward_model" / "preference-transformer" / "0" / "result"
    write(explored / "metrics.json", {"accuracy": 0.6})
    write(explored / "examples.jsonl", [EXAMPLE])
    tree = ResultTree(root, (0,))
    made = [*paper_figures("sentence", tree), *recorded_figures("sentence", tree)]
    return {figure.key: figure for figure in made if figure.to_json()["status"] in ("measured", "not run")}


def test_best_of_n_is_drawn_over_the_sizes_in_order(figures: dict[str, FigureData]) -> None:
    by_judge, by_truth = figures["figure-3a"].panels
    assert [series.label for series in by_judge.series] == ["Sentence (ours)", "Response", "Token"]
    assert by_judge.series[0].x == [2, 4, 32]
    assert by_truth.series[0].y == [52.0, 54.0, 82.0]
    assert figures["figure-9"].panels[0].series


def test_tokens_that_close_a_clause_are_apart_from_the_others(figures: dict[str, FigureData]) -> None:
    (series,) = figures["figure-7"].panels[0].series
    ends = dict(zip(series.x, series.y, strict=True))
    assert series.x[-1] == "0"
    assert ends["0"] == pytest.approx((0.9 + 0.3) / 2 / 0.3)
    assert ends["-1"] == pytest.approx(0.1 / 0.3)


def test_answers_stand_side_by_side_and_the_time_comes_from_the_records(figures: dict[str, FigureData]) -> None:
    (block,) = figures["figure-11"].blocks
    assert [model["name"] for model in block["models"]] == ["Response", "Token", "Sentence (ours)"]
    assert block["models"][0]["rewards"] == [1.0]
    (series,) = figures["figure-6-time"].panels[0].series
    assert (series.x, series.y) == (["sat-3l"], [30.0])
    assert figures["figure-6-time"].missing == ["sat-1l", "sat-9l"]
