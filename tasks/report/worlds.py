"""Values of rows over worlds: a run's seed is its world.

A world that only one of two rows has is left out of their comparison and named: a missing run is shown, never averaged
away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_core.evaluation import statistics
from rlhf_core.evaluation.worlds import Effect, over_worlds, paired
from tasks.report.outputs import StageOutput
from tasks.studies.registration import FIRST_REGISTERED

EXPLORATORY = "exploratory: settings were made while looking at these seeds"
#: Seed -> value.
BySeed = Mapping[int, float]
#: A mean over worlds and its standard error, None of a single world.
Mean = tuple[float, float | None]


@dataclass(frozen=True)
class Comparison:
    """A row against another row, or against a constant.

    Attributes:
        effect: the row less the other.
        missing: names the worlds that one of the rows lacks; None if both have the same.
        worlds: seeds of the worlds that the effect is over.
    """

    effect: Effect
    missing: str | None = None
    worlds: frozenset[int] = frozenset()


def compare(name: str, row: BySeed, other_name: str, other: BySeed) -> Comparison | None:
    """Returns a row against another over the worlds that both have; None without one."""
    shared = row.keys() & other.keys()
    if not shared:
        return None
    lacking = {name: other.keys() - shared, other_name: row.keys() - shared}
    texts = [f"{who} lacks world {', '.join(map(str, sorted(which)))}" for who, which in lacking.items() if which]
    return Comparison(paired(row, other), "; ".join(texts) or None, frozenset(shared))


def compare_constant(row: BySeed, constant: float) -> Comparison | None:
    """Returns a row against a constant, such as the 50 % of the SFT policy; None without a world."""
    return Comparison(over_worlds(row, constant), None, frozenset(row)) if row else None


def exploratory(seeds: Iterable[int]) -> bool:
    """Returns whether one of some seeds is not of a registered study, so that its results may have been seen."""
    return any(seed < FIRST_REGISTERED for seed in seeds)


def mean_and_standard_error(values: Sequence[float]) -> Mean:
    """Returns the mean and standard error over worlds (ddof 1); None for a single world, where there is no spread."""
    mean, error = statistics.mean_and_standard_error(values)
    return mean, error if len(values) > 1 else None


def mean_of(outputs: Mapping[int, StageOutput], metric: str) -> Mean | None:
    """Returns the mean and standard error of a metric over worlds; None where no run has it."""
    values = [out.metrics[metric] for out in outputs.values() if metric in out.metrics]
    return mean_and_standard_error(values) if values else None
