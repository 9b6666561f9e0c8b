"""The metric of a row at equal KL."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from tasks.studies.equal_kl import at_kl


def curve(*points: tuple[float, float], temperature: float = 1.0) -> dict[str, Any]:
    rows = [{"step": n, "kl": kl, "win_rate_vs_sft": rate} for n, (kl, rate) in enumerate(points)]
    return {"temperature": temperature, "top_p": 1.0, "points": rows}


def test_the_metric_is_linear_in_the_root_of_kl() -> None:
    (found,) = at_kl(curve((1.0, 60.0), (9.0, 70.0)), [4.0])
    assert found.value == pytest.approx(65.0)
    (at_point,) = at_kl(curve((1.0, 60.0), (9.0, 70.0)), [9.0])
    assert at_point.value == pytest.approx(70.0)


def test_training_starts_at_the_sft_model() -> None:
    (found,) = at_kl(curve((1.0, 60.0)), [0.25])
    assert found.value == pytest.approx(55.0)


def test_the_first_passage_counts() -> None:
    (found,) = at_kl(curve((4.0, 60.0), (1.0, 90.0), (4.0, 20.0)), [4.0])
    assert found.value == pytest.approx(60.0)


@pytest.mark.parametrize(
    ("made", "metric", "reason"),
    [
        (curve((1.0, 60.0)), "win_rate_vs_sft", "reached 1 nats, below 4"),
        (curve((1.0, 60.0), (9.0, 70.0), temperature=0.0), "win_rate_vs_sft", "temperature 0, top_p 1 and top_k 0"),
        (curve((1.0, 60.0), (math.nan, 70.0)), "win_rate_vs_sft", "kl of step 1 is nan"),
        (curve((1.0, 60.0)), "proxy_reward", "no evaluation while training has proxy_reward"),
        ({}, "win_rate_vs_sft", "no evaluation"),
    ],
)
def test_a_row_without_the_target_is_blank(made: dict[str, Any], metric: str, reason: str) -> None:
    (found,) = at_kl(made, [4.0], metric)
    assert found.value is None
    assert found.reason is not None
    assert reason in found.reason


def test_a_metric_that_is_unknown_at_the_start_is_not_read_below_the_first_evaluation() -> None:
    made = curve((4.0, 60.0), (9.0, 70.0))
    for point in made["points"]:
        point["proxy_reward"] = point["kl"]
    below, between = at_kl(made, [1.0, 6.25], "proxy_reward")
    assert (below.value, below.reason) == (None, "was first measured at 4 nats, beyond 1")
    assert between.value == pytest.approx(6.5)


def test_an_estimate_below_zero_is_no_distance() -> None:
    (found,) = at_kl(curve((-0.01, 48.0), (4.0, 60.0)), [1.0])
    assert found.value == pytest.approx(54.0)


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan])
def test_a_target_that_is_no_distance_is_refused(target: float) -> None:
    with pytest.raises(RecipeError, match="KL target"):
        at_kl(curve((1.0, 60.0)), [target])
