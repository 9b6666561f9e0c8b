"""Comparisons that count worlds: effects with interval, p and the smallest effect that they can see.

A world is one independent draw of all that is random: facts, data, prompts, initial weights, SFT model, reward model
and policy. A row's value in a world is the mean of its policy seeds there, so seeds are averaged and never counted.
The estimand is the mean over worlds of (row - main row) in one metric.

    values = {"segment": {100: [61.0, 63.0], 101: [58.0]}, "token": {100: [55.0], 101: [56.0, 54.0]}}
    effect = paired(values, "token", "segment")     # worlds 100 and 101: -7 and -3
    effect.estimate, effect.interval(), effect.p, effect.smallest_visible()

1. `paired`: rows that share their worlds; t of the K differences, K - 1 degrees of freedom.
2. `against_constant`: one row against a constant, such as the 50 % of the SFT policy.

The t-test is right about the mean over worlds where rows collapse equally often, also with unequal deviations. Where
only one of two rows collapses, in one run of ten, say, few worlds can have no such run, and no test sees what did not
happen (docs/evidence.md has the rates of both).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from numbers import Real
from typing import Any

import numpy as np

from rlhf_core.errors import DataError, hint
from rlhf_core.evaluation.statistics import ROUNDING, Floats, Interval

ALPHA = 0.05
POWER = 0.8
#: Reasons for an effect without a test.
ONE_WORLD = "one world"
NO_VARIANCE = "no variance"

World = int | str
#: World -> values of the policy seeds in that world.
ByWorld = Mapping[Any, Sequence[float]]
#: Row -> world -> values of the policy seeds.
ByRow = Mapping[str, ByWorld]


@dataclass(frozen=True)
class Effect:
    """A mean over worlds with its test.

    Attributes:
        estimate: mean of the differences, in the metric's unit.
        standard_error, degrees: of the t distribution; None where there is no test.
        worlds: their number.
        reason: why there is no test: 'one world', or 'no variance' (equal differences in all worlds say nothing about
            how much they vary, and are never p = 0).
    """

    estimate: float
    standard_error: float | None
    degrees: float | None
    worlds: int
    reason: str | None = None

    @property
    def p(self) -> float | None:
        """Returns the two-sided p of no effect; None without a test."""
        return self.p_beyond(0.0)

    def interval(self, level: float = 1 - ALPHA) -> Interval | None:
        """Returns the interval of the effect, not corrected for other rows; None without a test."""
        from scipy import stats

        if self.standard_error is None:
            return None
        half = float(stats.t.isf((1 - level) / 2, self.degrees)) * self.standard_error
        return Interval(self.estimate, self.estimate - half, self.estimate + half)

    def smallest_visible(self, alpha: float = ALPHA, power: float = POWER) -> float | None:
        """Returns the effect that the two-sided test finds with a power, if deviations are as seen; None without a
        test."""
        if self.standard_error is None or self.degrees is None:
            return None
        return _noncentrality(self.degrees, alpha, power) * self.standard_error

    def p_within(self, margin: float) -> float | None:
        """Returns the p of two one-sided tests for an effect inside (-margin, margin); None without a test.

        It is below .05 exactly where the 90 % interval is inside. Source: Schuirmann 1987.
        """
        from scipy import stats

        _check_margin(margin)
        if self.standard_error is None:
            return None
        return float(stats.t.sf((margin - abs(self.estimate)) / self.standard_error, self.degrees))

    def p_beyond(self, margin: float) -> float | None:
        """Returns the two-sided p of an effect inside [-margin, margin], 1 for an estimate inside; None without a
        test."""
        from scipy import stats

        if self.standard_error is None:
            return None
        excess = max(0.0, abs(self.estimate) - margin) / self.standard_error
        return min(1.0, float(2 * stats.t.sf(excess, self.degrees)))


def _check_margin(margin: float) -> None:
    if not (margin > 0 and math.isfinite(margin)):
        raise DataError(f"margin is {margin:g}; it must be a number above 0", field="margin")


@lru_cache(maxsize=4096)
def _noncentrality(degrees: float, alpha: float, power: float) -> float:
    """Returns the effect in standard errors that a two-sided t-test finds with a power.

    The power is the noncentral t's beyond both bounds, as the mean over the measured deviation's distribution of the
    normal probability; scipy's noncentral t is NaN for some effects of few degrees.
    """
    from scipy import integrate, optimize, special, stats

    bound = float(stats.t.isf(alpha / 2, degrees))

    def missing(effect: float) -> float:
        def found(share: float) -> float:
            deviation = math.sqrt(2 * special.gammaincinv(degrees / 2, share) / degrees)
            return float(special.ndtr(effect - bound * deviation) + special.ndtr(-effect - bound * deviation))

        return float(integrate.quad(found, 0.0, 1.0, limit=200, epsabs=1e-11)[0]) - power

    return float(optimize.brentq(missing, 0.0, 4 * bound + 10, xtol=1e-9))


def in_order(world: World) -> tuple[int, str]:
    """Returns what worlds are sorted by: numbers by their size, then names."""
    return (world, "") if isinstance(world, int) else (sys.maxsize, str(world))


def world_means(values: ByRow, row: str) -> dict[World, float]:
    """Returns a row's mean over policy seeds in each of its worlds.

    Raises:
        DataError: an unknown row, a row without worlds, a world without values, or a value that is not finite.
    """
    if row not in values:
        raise DataError(f"unknown row '{row}'{hint(row, values)}", field="row")
    if not values[row]:
        raise DataError(f"row '{row}' has no worlds")
    means: dict[World, float] = {}
    for world in sorted(values[row], key=in_order):
        seeds = values[row][world]
        if not len(seeds):
            raise DataError(
                f"row '{row}' has no value in world {world}", remedy="Run it, or leave the world out of every row"
            )
        for value in seeds:
            if not (isinstance(value, Real) and math.isfinite(value)):
                raise DataError(
                    f"row '{row}' has the value {value} in world {world}, which is not a finite number",
                    remedy="A diverged run scores what it scored: record that score",
                )
        means[world] = math.fsum(seeds) / len(seeds)
    return means


def _same_worlds(means: Mapping[str, Mapping[World, float]]) -> list[World]:
    """Returns the worlds that all rows have; refuses a row that lacks one."""
    every = {world for of_row in means.values() for world in of_row}
    for row, of_row in means.items():
        lacking = sorted(every - of_row.keys(), key=in_order)
        if lacking:
            other = next(name for name, others in means.items() if lacking[0] in others)
            raise DataError(
                f"row '{row}' has no value in world {lacking[0]}, which row '{other}' has"
                + (f" ({len(lacking)} worlds are missing)" if len(lacking) > 1 else ""),
                remedy="Run it, or leave the world out of every row",
            )
    return sorted(every, key=in_order)


def _mean_effect(differences: Floats, scale: float) -> Effect:
    """Returns the mean of one difference a world; `scale` is the largest value behind them."""
    count, estimate = len(differences), float(differences.mean())
    if count == 1:
        return Effect(estimate, None, None, 1, ONE_WORLD)
    deviation = float(differences.std(ddof=1))
    if deviation <= ROUNDING * scale:
        return Effect(estimate, None, None, count, NO_VARIANCE)
    return Effect(estimate, deviation / math.sqrt(count), count - 1, count)


def _largest(*groups: Iterable[float]) -> float:
    return max(abs(value) for group in groups for value in group)


def paired(values: ByRow, row: str, main: str) -> Effect:
    """Compares a row with the main row over the worlds that they share: t of the K differences, K - 1 degrees.

    Raises:
        DataError: as `world_means`, and a world that only one of them has.
    """
    means = {name: world_means(values, name) for name in (row, main)}
    worlds = _same_worlds(means)
    differences = np.array([means[row][world] - means[main][world] for world in worlds])
    return _mean_effect(differences, _largest(means[row].values(), means[main].values()))


def against_constant(values: ByRow, row: str, constant: float, scale: float = 0.0) -> Effect:
    """Compares a row with a constant: t of its K world means less the constant, K - 1 degrees.

    Args:
        values, row: a row's values by world.
        constant: in the metric's unit.
        scale: the largest number that the values are differences of; its rounding is no variance.

    Raises:
        DataError: as `world_means`, and a constant that is not finite.
    """
    if not math.isfinite(constant):
        raise DataError(f"the constant is {constant}, which is not a finite number", field="constant")
    means = np.array(list(world_means(values, row).values()))
    return _mean_effect(means - constant, _largest(means, [constant, scale]))


def over_worlds(values: Mapping[Any, float], scale: float = 0.0) -> Effect:
    """Returns the mean of one number a world, with its test against 0.

    Args:
        values: by world.
        scale: the largest number that the values are differences of; its rounding is no variance.
    """
    return against_constant({"": {world: [value] for world, value in values.items()}}, "", 0.0, scale)
