"""Comparison at equal KL: the metric of a row where its policy has gone a given distance from the SFT model.

Distances are nats per response, estimated on answers that the policy sampled at temperature 1. Between two evaluations
the metric is linear in the root of KL, in which win rates against KL are nearly straight (Gao et al. 2023). Training
starts at the SFT model: KL 0 and, in win rates over it, 50 %.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tasks.studies.records import is_number

#: Metrics that compare with the SFT model, which itself has this value.
OVER_SFT, EVEN = "win_rate_vs_sft", 50.0


def at_kl(curve: Mapping[str, Any], target: float, metric: str = OVER_SFT) -> float | str:
    """Returns the metric where the policy first went through a KL, never beyond what it reached; else why there is
    none.

    Args:
        curve: of a row's record; `metric` is a field of its points.
        target: nats per response, above 0.
    """
    if (problem := curve_problem(curve, metric)) is not None:
        return problem
    path = path_of(curve, metric)
    if target < path[0][0]:
        return f"was first measured at {path[0][0]:.3g} nats, beyond {target:g}"
    for (before, first), (after, second) in itertools.pairwise(path):
        if min(before, after) <= target <= max(before, after) and before != after:
            share = (math.sqrt(target) - math.sqrt(before)) / (math.sqrt(after) - math.sqrt(before))
            return float(first + share * (second - first))
    reached = max(kl for kl, _ in path)
    return path[0][1] if target == reached else f"reached {reached:.3g} nats, below {target:g}"


def path_of(curve: Mapping[str, Any], metric: str, start: float | None = None) -> list[tuple[float, float]]:
    """Returns KL and metric of a curve's points, from the SFT model on where its value is known: `start`, or 50 % of
    win rates over it."""
    first = EVEN if start is None and metric.endswith(OVER_SFT) else start
    path = [(max(0.0, point["kl"]), point[metric]) for point in curve["points"] if metric in point]
    return path if first is None else [(0.0, first), *path]


def curve_problem(curve: Mapping[str, Any], metric: str) -> str | None:
    """Returns why a curve cannot be read, None where it can."""
    points = [point for point in curve.get("points", ()) if metric in point]
    if not points:
        return f"no evaluation while training has {metric}"
    if (curve["temperature"], curve["top_p"], curve.get("top_k", 0)) != (1, 1, 0):  # not the policy's own distribution
        drawn = f"temperature {curve['temperature']:g}, top_p {curve['top_p']:g} and top_k {curve.get('top_k', 0)}"
        return f"answers were sampled at {drawn}; KL is of answers at temperature 1"
    wrong = (f"{name} of step {one['step']} is {one.get(name)}" for one in points for name in ("kl", metric)
             if not is_number(one.get(name)))  # fmt: skip
    return next(wrong, None)
