"""Comparisons that count worlds: effects with interval, p and the smallest effect that they can see.

A world is one independent draw of all that is random: facts, data, prompts, initial weights, SFT model, reward model
and policy. The estimand is the mean over worlds of (row - main row) in one metric.

    effect = paired({100: 55.0, 101: 55.0}, {100: 62.0, 101: 58.0})     # worlds 100 and 101: -7 and -3
    effect.estimate, effect.interval(), effect.p, effect.smallest_visible()

1. `paired`: rows that share their worlds; t of the K differences, K - 1 degrees of freedom.
2. `over_worlds`: one row against a constant, such as the 50 % of the SFT policy.

The t-test is right about the mean over worlds where rows collapse equally often, also with unequal deviations. Where
only one of two rows collapses, in one run of ten, say, few worlds can have no such run, and no test sees what did not
happen (docs/evidence.md has the rates of both).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import ROUNDING, Floats, Interval

ALPHA = 0.05
POWER = 0.8
#: Reasons for an effect without a test.
ONE_WORLD = "one world"
NO_VARIANCE = "no variance"

World = int


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


def over_worlds(values: Mapping[Any, float], constant: float = 0.0, scale: float = 0.0) -> Effect:
    """Returns the mean of one number a world less a constant, with its t-test of K - 1 degrees of freedom.

    Args:
        values: by world.
        constant: in the numbers' unit, such as the 50 % of the SFT policy.
        scale: the largest number that the values are differences of; its rounding is no variance.

    Raises:
        DataError: no world, or a number that is not finite; names the world.
    """
    if not values:
        raise DataError("there are no worlds to compare")
    for world, value in values.items():
        if not math.isfinite(value):
            raise DataError(
                f"the value of world {world} is {value}, which is not a finite number",
                remedy="A diverged run scores what it scored: record that score",
            )
    own = np.array([values[world] for world in sorted(values)])
    differences = own - constant
    count, estimate = len(own), float(differences.mean())
    if count == 1:
        return Effect(estimate, None, None, 1, ONE_WORLD)
    deviation = float(differences.std(ddof=1))
    if deviation <= ROUNDING * max(float(np.abs(own).max()), abs(constant), scale):
        return Effect(estimate, None, None, count, NO_VARIANCE)
    return Effect(estimate, deviation / math.sqrt(count), count - 1, count)


def paired(row: Mapping[Any, float], main: Mapping[Any, float]) -> Effect:
    """Compares a row with the main row over the worlds that they share: t of the K differences, K - 1 degrees.

    Args:
        row, main: value by world.

    Raises:
        DataError: as `over_worlds`.
    """
    shared = [world for world in row if world in main]
    largest = max((abs(values[world]) for values in (row, main) for world in shared), default=0.0)
    return over_worlds({world: row[world] - main[world] for world in shared}, scale=largest)


# --- comparisons of a row with itself (A/A) ------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """Standardised differences of things that are alike.

    Attributes:
        p_values: one for each difference, uniform if the standard errors are right.
        mean_square: of the standardised differences; below the band, errors are too large; above it, too small.
        band: where 95 % of the mean squares of sound comparisons are.
        uniform_p: Kolmogorov-Smirnov p of the p-values.
    """

    p_values: tuple[float, ...]
    mean_square: float
    band: tuple[float, float]
    uniform_p: float

    @property
    def sound(self) -> bool:
        """Returns whether the mean square is in its band and the p-values look uniform at .05."""
        return self.band[0] <= self.mean_square <= self.band[1] and self.uniform_p >= ALPHA


def standardised_p(differences: Sequence[float], variance: float, degrees: int) -> list[float]:
    """Returns the p of each difference by the variance known before it: independent and uniform for normal ones.

    Twins are two runs of one row in one world with another policy seed; their difference d has mean 0. Its variance is
    not known, and an estimate from few differences makes d / sqrt(v) larger than a normal variable. So each is
    standardised by what is known before it:

        v_i = (degrees x v + d_1^2 + ... + d_(i-1)^2) / (degrees + i - 1)        t_i = d_i / sqrt(v_i)

    t_i has a t distribution with degrees + i - 1 degrees of freedom, independent of the t before it, which depend on
    ratios of earlier squares alone. Standardising by all other differences (leave one out) is no test: the mean square
    is near 1 whatever the differences are. Runs that collapse make differences far from normal: then sound twins are
    refused, although verdicts by worlds stay conservative.

    Args:
        differences: with mean 0, in an order that does not depend on them.
        variance: of a difference, estimated from other runs with `degrees` degrees of freedom.

    Raises:
        DataError: a difference that is not finite, or a variance of 0.
    """
    from scipy import stats

    squares: Floats = np.asarray(differences, dtype=np.float64) ** 2
    if not np.isfinite(squares).all():
        raise DataError("a difference is not a finite number", field="differences")
    if not variance > 0:
        raise DataError("the first differences are 0, which gives no variance", remedy="Check that the seeds differ")
    known = degrees + np.arange(len(squares))
    total = degrees * variance + np.concatenate([[0.0], np.cumsum(squares)[:-1]])
    return [float(p) for p in 2 * stats.t.sf(np.sqrt(squares * known / total), known)]


def calibration_of_p_values(p_values: Sequence[float]) -> Calibration:
    """Tests whether p-values of things that are alike are uniform, and the squares that they stand for of mean 1.

    Raises:
        DataError: there are none.
    """
    from scipy import stats

    if not p_values:
        raise DataError("there are no differences to standardise")
    n, tail = len(p_values), (ALPHA) / 2
    mean_square = float(np.mean(stats.chi2.isf(p_values, 1)))
    band = float(stats.chi2.ppf(tail, n)) / n, float(stats.chi2.isf(tail, n)) / n
    return Calibration(tuple(p_values), mean_square, band, float(stats.kstest(p_values, "uniform").pvalue))
