"""Names of metrics: every metric that a stage wrote is known, and those that the report computes are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.params.evaluation import METRIC_NAMES, PARTS, is_metric, needed_parts

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("stage", ["policy", "sft", "reward_bench", "best_of_n", "second_judge"])
def test_every_metric_that_a_last_stage_wrote_is_known(stage: str) -> None:
    runs = json.loads((GOLDEN / f"{stage}.json").read_text(encoding="utf-8"))["runs"].values()
    written = {name.partition("/")[2] for run in runs for name in run["numbers"] if name.startswith("metrics/")}
    assert len(written) > 1
    assert not [name for name in written if not is_metric(name)]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("win_rate_vs_sft", [("alpaca",)]),
        ("peak_win_rate_vs_sft_p", [("alpaca",)]),
        ("ood_win_rate_vs_sft", [("ood",)]),
        ("arena_wr", [("arena",)]),
        ("peak_mtbench", [("mtbench",)]),
        ("mmlu", [("choices", "tasks")]),
        ("average", [("choices", "tasks"), ("arithmetic", "tasks")]),
        ("mbpp_plus", [("code",)]),
        ("kl", []),
    ],
)
def test_a_metric_needs_the_parts_of_an_evaluation_that_measure_it(name: str, parts: list[tuple[str, ...]]) -> None:
    assert needed_parts(name) == parts


def test_parts_that_metrics_need_are_those_of_evaluations() -> None:
    assert {part for name in METRIC_NAMES for group in needed_parts(name) for part in group} == {*PARTS}
