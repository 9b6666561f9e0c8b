"""Values by prompt: their mean is what the cell says, whatever the sizes of the sets."""

from __future__ import annotations

from statistics import mean
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlhf_core.evaluation.reward_bench import OFFICIAL, SECTIONS, ScoredPair, reward_bench_scores
from tasks.report.measurements import prompt_values


def output(rows: list[dict[str, Any]]) -> Any:
    return cast(Any, SimpleNamespace(generations=rows, judgements=[], scores={}))


def scored(subset: str, section: str, right: list[bool]) -> tuple[list[dict[str, Any]], list[ScoredPair]]:
    rows = [
        {"benchmark": section, "id": f"{subset}-{i}", "subset": subset, "right": value} for i, value in enumerate(right)
    ]
    return rows, [ScoredPair(f"{subset}-{i}", section, subset, float(value), 0.5) for i, value in enumerate(right)]


def test_prompts_of_rewardbench_weigh_as_its_sections_and_subsets_do() -> None:
    rows: list[dict[str, Any]] = []
    pairs: list[ScoredPair] = []
    for number, section in enumerate(SECTIONS):
        for place, subset in enumerate(list(OFFICIAL[section])[: number + 1]):
            more, scores = scored(subset, section, [i % (place + 2) > 0 for i in range(7 + 5 * number + place)])
            rows, pairs = rows + more, pairs + scores
    expected = reward_bench_scores(pairs)
    assert expected["average"] != pytest.approx(expected["accuracy"]), "sections of different sizes"
    for metric in (*SECTIONS, "average"):
        values = prompt_values(metric, output(rows), None)
        assert 100 * mean(values.values()) == pytest.approx(expected[metric]), metric


def test_test_sets_of_questions_weigh_alike() -> None:
    rows = [{"benchmark": "small", "id": str(i), "extracted": "x", "right": True} for i in range(10)]
    rows += [{"benchmark": "large", "id": str(i), "extracted": None, "right": i < 10} for i in range(40)]
    assert mean(prompt_values("average", output(rows), None).values()) == pytest.approx((1.0 + 0.25) / 2)
    assert set(prompt_values("large", output(rows), None).values()) == {0.0, 1.0}
