"""Comparisons of a row with itself (A/A): are differences as large as their standard errors say?

Twins are two runs of one row in one world: the same settings, another policy seed. Their difference d has mean 0. Its
variance v is not known, and an estimate from few differences makes d / sqrt(v) larger than a normal variable, so the
chi-square band of known variances would refuse sound comparisons too often. Each difference is therefore standardised
by what is known before it, world after world:

    v_i = (degrees x v + d_1^2 + ... + d_(i-1)^2) / (degrees + i - 1)        t_i = d_i / sqrt(v_i)

`v` has `degrees` degrees of freedom and comes from other runs. For normal differences t_i has a t distribution with
degrees + i - 1 degrees of freedom. It is independent of the t before it: these depend on the ratios of earlier squares
alone, which are independent of their sum, the only thing of them in v_i. So p_i = P(|t| > |t_i|) are independent and
uniform, and z_i = the normal quantile of p_i are independent and normal: the mean of n squared z has exactly the band
chi-square(n) / n, .61 to 1.48 for n = 40, and the Kolmogorov-Smirnov test of the p is exact.

Standardising by all other differences (leave one out) is no test: the mean square is near 1 whatever the differences
are.

Runs that collapse make differences far from normal: then sound twins are refused, mostly by the p-values, although
verdicts by worlds stay conservative.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import Floats

LEVEL = 0.95


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
        return self.band[0] <= self.mean_square <= self.band[1] and self.uniform_p >= 1 - LEVEL


def standardised_p(differences: Sequence[float], variance: float, degrees: int) -> list[float]:
    """Returns the p of each difference by the variance known before it: independent and uniform for normal ones.

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
    n, tail = len(p_values), (1 - LEVEL) / 2
    mean_square = float(np.mean(stats.chi2.isf(p_values, 1)))
    band = float(stats.chi2.ppf(tail, n)) / n, float(stats.chi2.isf(tail, n)) / n
    return Calibration(tuple(p_values), mean_square, band, float(stats.kstest(p_values, "uniform").pvalue))
