"""Comparison at equal KL: the metric of a row where its policy has gone a given distance from the SFT model.

Distances are nats per response, estimated on answers that the policy sampled at temperature 1. Between two evaluations
the metric is linear in the root of KL, in which win rates against KL are nearly straight (Gao et al. 2023).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.params.studies import StudySpec
from tasks.studies.records import Records, is_number

#: Metrics that compare with the SFT model, which itself has this value.
OVER_SFT, EVEN = "win_rate_vs_sft", 50.0
#: The mark of a value that is assumed in part, and its meaning.
ASSUMED = "*"
WHAT_IS_ASSUMED = "read before the row's first evaluation in some world, from the win rate of 50 % assumed at KL 0"


@dataclass(frozen=True)
class AtKL:
    """A row's metric at a KL target.

    Attributes:
        target: nats per response.
        value: None where the row has none.
        reason: why it has none.
        assumed: it is read before the first evaluation, from the win rate of 50 % that is assumed at KL 0.
    """

    target: float
    value: float | None
    reason: str | None = None
    assumed: bool = False


def has_kl(temperature: float, top_p: float, top_k: int) -> bool:
    """Returns whether answers drawn so are the policy's own, of which KL is measured."""
    return (temperature, top_p, top_k) == (1, 1, 0)


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
    if (problem := curve_problem(curve, metric)) is not None:
        return [AtKL(target, None, problem) for target in targets]
    path, starts_assumed = path_of(curve, metric), metric.endswith(OVER_SFT)
    return [_along(path, target, starts_assumed=starts_assumed) for target in targets]


def path_of(curve: Mapping[str, Any], metric: str, start: float | None = None) -> list[tuple[float, float]]:
    """Returns KL and metric of a curve's points, from the SFT model on where its value is known.

    Args:
        curve: of a row's record.
        metric: a field of its points.
        start: the SFT model's value; of win rates over it 50 % unless given.
    """
    first = EVEN if start is None and metric.endswith(OVER_SFT) else start
    path = [(max(0.0, point["kl"]), point[metric]) for point in curve["points"] if metric in point]
    return path if first is None else [(0.0, first), *path]


def curve_problem(curve: Mapping[str, Any], metric: str) -> str | None:
    """Returns why a curve cannot be read, None where it can."""
    points = [point for point in curve.get("points", ()) if metric in point]
    if not points:
        return f"no evaluation while training has {metric}"
    if not has_kl(curve["temperature"], curve["top_p"], curve.get("top_k", 0)):
        drawn = f"temperature {curve['temperature']:g}, top_p {curve['top_p']:g} and top_k {curve.get('top_k', 0)}"
        return f"answers were sampled at {drawn}; KL is of answers at temperature 1"
    wrong = (f"{name} of step {one['step']} is {one.get(name)}" for one in points for name in ("kl", metric)
             if not is_number(one.get(name)))  # fmt: skip
    return next(wrong, None)


def _along(path: Sequence[tuple[float, float]], target: float, *, starts_assumed: bool) -> AtKL:
    if target < path[0][0]:  # it first went through the target before its first evaluation
        return AtKL(target, None, f"was first measured at {path[0][0]:.3g} nats, beyond {target:g}")
    for place, ((before, first), (after, second)) in enumerate(itertools.pairwise(path)):
        if min(before, after) <= target <= max(before, after) and before != after:
            share = (math.sqrt(target) - math.sqrt(before)) / (math.sqrt(after) - math.sqrt(before))
            value = first + share * (second - first)
            return AtKL(target, value, assumed=starts_assumed and place == 0 and target < after)
    reached = max(kl for kl, _ in path)
    if target == reached:
        return AtKL(target, path[0][1])
    return AtKL(target, None, f"reached {reached:.3g} nats, below {target:g}")


@dataclass(frozen=True)
class MeanAtKL:
    """A row's metric at a KL target in a cell; the mean over worlds.

    Attributes:
        row, cell: their names.
        target: nats per response.
        value: None where a world has none: a mean over the other worlds would choose among them.
        reason: why it has none.
        assumed: a world is read before the row's first evaluation.
    """

    row: str
    cell: str
    target: float
    value: float | None
    reason: str | None
    assumed: bool = False

    @property
    def text(self) -> str:
        """Returns the value, marked where it is assumed in part; empty without one."""
        return "" if self.value is None else f"{self.value:.1f}{ASSUMED if self.assumed else ''}"


def rows_at_kl(spec: StudySpec, records: Records) -> list[MeanAtKL]:
    """Returns the metric at the study's KL targets of each row with evaluations while training, by cell."""
    found = []
    for cell, levels in spec.cells.items() if spec.kl_targets else ():
        for row in spec.rows_of(levels):
            curves = [record["cells"][cell]["rows"][row].get("curve", {}) for record in records.values()]
            if not any(curves):
                continue
            by_world = [at_kl(curve, spec.kl_targets, spec.metric) for curve in curves]
            for target, points in zip(spec.kl_targets, zip(*by_world, strict=True), strict=True):
                blank = [point.reason for point in points if point.value is None]
                reason = f"{len(blank)} of {len(points)} worlds: {blank[0]}" if blank else None
                value = None if blank else fmean(point.value for point in points if point.value is not None)
                found.append(MeanAtKL(row, cell, target, value, reason, any(point.assumed for point in points)))
    return found
