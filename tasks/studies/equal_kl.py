"""Comparison at equal KL: the metric of a row where its policy has gone a given distance from the SFT model.

Distances are nats per response, estimated on answers that the policy sampled at temperature 1. Between two evaluations
the metric is linear in the root of KL, in which win rates against KL are nearly straight (Gao et al. 2023).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.studies.trial_records import EVEN, OVER_SFT


@dataclass(frozen=True)
class AtKL:
    """A row's metric at a KL target.

    Attributes:
        target: nats per response.
        value: None where the row has none.
        reason: why it has none.
    """

    target: float
    value: float | None
    reason: str | None = None


def at_kl(curve: Mapping[str, Any], targets: Sequence[float], metric: str = OVER_SFT) -> list[AtKL]:
    """Returns the metric at each target where the policy first went through it; never beyond what it reached.

    Args:
        curve: of a row's record. Training starts at the SFT model: KL 0 and, in win rates over it, 50 %.
        targets: nats per response, above 0.
        metric: a field of the curve's points.

    Raises:
        RecipeError: a target that is not above 0 and finite.
    """
    for target in targets:
        if not (math.isfinite(target) and target > 0):
            raise RecipeError(f"a KL target is {target}; it must be a finite number of nats above 0")
    problem = _problem(curve, metric)
    if problem is not None:
        return [AtKL(target, None, problem) for target in targets]
    path = [(max(0.0, point["kl"]), point[metric]) for point in curve["points"] if metric in point]
    if metric.endswith(OVER_SFT):
        path.insert(0, (0.0, EVEN))
    return [_along(path, target) for target in targets]


def _problem(curve: Mapping[str, Any], metric: str) -> str | None:
    """Returns why a curve cannot be read, None where it can."""
    points = [point for point in curve.get("points", ()) if metric in point]
    if not points:
        return f"no evaluation while training has {metric}"
    if (curve["temperature"], curve["top_p"]) != (1, 1):
        drawn = f"temperature {curve['temperature']:g} and top_p {curve['top_p']:g}"
        return f"answers were sampled at {drawn}; KL is of answers at temperature 1"
    for point in points:
        for name in ("kl", metric):
            if not isinstance(point.get(name), int | float) or not math.isfinite(point[name]):
                return f"{name} of step {point['step']} is {point.get(name)}"
    return None


def _along(path: Sequence[tuple[float, float]], target: float) -> AtKL:
    for (before, first), (after, second) in itertools.pairwise(path):
        if min(before, after) <= target <= max(before, after) and before != after:
            share = (math.sqrt(target) - math.sqrt(before)) / (math.sqrt(after) - math.sqrt(before))
            return AtKL(target, first + share * (second - first))
    reached = [kl for kl, _ in path]
    if target > max(reached):
        return AtKL(target, None, f"reached {max(reached):.3g} nats, below {target:g}")
    return AtKL(target, None, f"was first measured at {min(reached):.3g} nats, beyond {target:g}")
