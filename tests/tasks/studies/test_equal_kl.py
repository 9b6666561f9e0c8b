"""The metric of a row at equal KL."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tasks.studies.equal_kl import at_kl


def curve(*points: tuple[float, float], temperature: float = 1.0) -> dict[str, Any]:
    rows = [{"step": n, "kl": kl, "win_rate_vs_sft": rate, "proxy": kl} for n, (kl, rate) in enumerate(points)]
    return {"temperature": temperature, "top_p": 1.0, "points": rows}


@pytest.mark.parametrize(
    ("made", "target", "metric", "found"),
    [
        (curve((1.0, 60.0), (9.0, 70.0)), 4.0, "win_rate_vs_sft", 65.0),  # linear in the root of KL
        (curve((1.0, 60.0), (9.0, 70.0)), 9.0, "win_rate_vs_sft", 70.0),
        (curve((1.0, 60.0)), 0.25, "win_rate_vs_sft", 55.0),  # training starts at the SFT model
        (curve((4.0, 60.0), (1.0, 90.0), (4.0, 20.0)), 4.0, "win_rate_vs_sft", 60.0),  # the first passage
        (curve((-0.01, 48.0), (4.0, 60.0)), 1.0, "win_rate_vs_sft", 54.0),  # an estimate below 0 is no distance
        (curve((4.0, 60.0), (9.0, 70.0)), 6.25, "proxy", 6.5),
        (curve((4.0, 60.0), (9.0, 70.0)), 1.0, "proxy", "was first measured at 4 nats, beyond 1"),
        (curve((1.0, 60.0)), 4.0, "win_rate_vs_sft", "reached 1 nats, below 4"),
        (curve((1.0, 60.0), (9.0, 70.0), temperature=0.0), 4.0, "win_rate_vs_sft",
         "answers were sampled at temperature 0, top_p 1 and top_k 0; KL is of answers at temperature 1"),
        (curve((1.0, 60.0), (math.nan, 70.0)), 4.0, "win_rate_vs_sft", "kl of step 1 is nan"),
        ({}, 4.0, "win_rate_vs_sft", "no evaluation while training has win_rate_vs_sft"),
    ],
)  # fmt: skip
def test_the_metric_at_a_kl_or_why_there_is_none(
    made: dict[str, Any], target: float, metric: str, found: float | str
) -> None:
    assert at_kl(made, target, metric) == (found if isinstance(found, str) else pytest.approx(found))
