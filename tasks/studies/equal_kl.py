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

from rlhf_core.errors import DataError, RecipeError
from tasks.params.studies import Hypothesis, StudySpec
from tasks.studies.records import number_problem, value_of
from tasks.studies.registration import record_file
from tasks.studies.trial_records import EVEN, OVER_SFT


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
    problem = curve_problem(curve, metric)
    if problem is not None:
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


def hypothesis_value(spec: StudySpec, hypothesis: Hypothesis, record: Mapping[str, Any], cell: str, row: str) -> float:
    """Returns a row's metric in a cell of a world: at the end of training, or at the hypothesis' KL target.

    Raises:
        DataError: the row stopped, has no finite metric, or does not reach the target.
    """
    run = record["cells"][cell]["rows"][row]
    if hypothesis.kl is None or "stopped" in run:
        return value_of(record, cell, row, spec.metric)
    (found,) = at_kl(run.get("curve", {}), [hypothesis.kl], spec.metric)
    if found.value is None:
        raise DataError(
            f"world {record['world']}: row '{row}' of cell '{cell}' has no {spec.metric} at {hypothesis.kl:g} nats: "
            f"{found.reason}",
            file=record_file(record["study"], record["world"], pilot=record["kind"] == "pilot").as_posix(),
        )
    return found.value


def curve_problem(curve: Mapping[str, Any], metric: str) -> str | None:
    """Returns why a curve cannot be read, None where it can."""
    points = [point for point in curve.get("points", ()) if metric in point]
    if not points:
        return f"no evaluation while training has {metric}"
    top_k = curve.get("top_k", 0)
    if not has_kl(curve["temperature"], curve["top_p"], top_k):
        drawn = f"temperature {curve['temperature']:g} and top_p {curve['top_p']:g}"
        drawn += f" and top_k {top_k}" if top_k else ""
        return f"answers were sampled at {drawn}; KL is of answers at temperature 1"
    steps = [point.get("step") for point in points]
    if any(not isinstance(step, int | float) for step in steps) or steps != sorted({*steps}):
        return f"its evaluations are after steps {', '.join(map(str, steps))}, not one after another"
    for point in points:
        for name in ("kl", metric):
            if (problem := number_problem(name, point.get(name))) is not None:
                return f"{name} of step {point['step']} {problem}"
    return None


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
