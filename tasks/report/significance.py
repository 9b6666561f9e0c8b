"""Rows of a table against each other by worlds: a run's seed is its world (`rlhf_core.evaluation.worlds`).

A world that only one of two rows has is left out of their comparison and named: a missing run is shown, never averaged
away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlhf_core.evaluation.worlds import ByWorld, Effect, against_constant, paired
from tasks.report.outputs import BySeed
from tasks.studies.registration import FIRST_REGISTERED


@dataclass(frozen=True)
class Comparison:
    """A row against another row, or against a constant.

    Attributes:
        effect: the row less the other.
        missing: names the worlds that one of the rows lacks; None if both have the same.
        worlds: seeds of the worlds that the effect is over; `effect.worlds` is their number.
    """

    effect: Effect
    missing: str | None = None
    worlds: frozenset[int] = frozenset()


def by_world(values: BySeed) -> ByWorld:
    """Returns a metric of a row by world; a world has one run."""
    return {seed: [value] for seed, value in values.items()}


def _missing(name: str, worlds: Iterable[int]) -> list[str]:
    listed = ", ".join(map(str, sorted(worlds)))
    return [f"{name} lacks world {listed}"] if listed else []


def compare(name: str, row: BySeed, other_name: str, other: BySeed) -> Comparison | None:
    """Returns a row against another over the worlds that both have; None without one."""
    shared = row.keys() & other.keys()
    if not shared:
        return None
    own, theirs = ({seed: values[seed] for seed in shared} for values in (row, other))
    second = other_name if other_name != name else f"{name}, other metric"
    effect = paired({name: by_world(own), second: by_world(theirs)}, name, second)
    missing = _missing(name, other.keys() - shared) + _missing(other_name, row.keys() - shared)
    return Comparison(effect, "; ".join(missing) or None, frozenset(shared))


def compare_constant(name: str, row: BySeed, constant: float) -> Comparison | None:
    """Returns a row against a constant, such as the 50 % of the SFT policy; None without a world."""
    return Comparison(against_constant({name: by_world(row)}, name, constant), None, frozenset(row)) if row else None


def exploratory(seeds: Iterable[int]) -> bool:
    """Says whether one of some seeds is not of a registered study, so that its results may have been seen."""
    return any(seed < FIRST_REGISTERED for seed in seeds)
