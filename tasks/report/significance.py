"""Rows of a table against each other by worlds: a run's seed is its world (`rlhf_core.evaluation.worlds`).

A world that only one of two rows has is left out of their comparison and named: a missing run is shown, never averaged
away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rlhf_core.evaluation.worlds import Effect, over_worlds, paired
from tasks.report.outputs import BySeed
from tasks.studies.records import FIRST_REGISTERED


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


def _missing(name: str, worlds: Iterable[int]) -> list[str]:
    listed = ", ".join(map(str, sorted(worlds)))
    return [f"{name} lacks world {listed}"] if listed else []


def compare(name: str, row: BySeed, other_name: str, other: BySeed) -> Comparison | None:
    """Returns a row against another over the worlds that both have; None without one."""
    shared = row.keys() & other.keys()
    if not shared:
        return None
    missing = _missing(name, other.keys() - shared) + _missing(other_name, row.keys() - shared)
    return Comparison(paired(row, other), "; ".join(missing) or None, frozenset(shared))


def compare_constant(row: BySeed, constant: float) -> Comparison | None:
    """Returns a row against a constant, such as the 50 % of the SFT policy; None without a world."""
    return Comparison(over_worlds(row, constant), None, frozenset(row)) if row else None


def exploratory(seeds: Iterable[int]) -> bool:
    """Says whether one of some seeds is not of a registered study, so that its results may have been seen."""
    return any(seed < FIRST_REGISTERED for seed in seeds)
