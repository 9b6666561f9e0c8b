"""Statistics of comparisons: standard errors, paired tests, intervals, direction verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from rlhf_core.errors import DataError

Floats = NDArray[np.float64]
Direction = Literal["confirmed", "contradicted", "undecided"]


@dataclass(frozen=True)
class MeanError:
    """Mean and standard error (ddof 1; NaN below two values) of n values."""

    mean: float
    standard_error: float
    n: int


@dataclass(frozen=True)
class TestResult:
    """A test's statistic (mean difference or count, see the function), two-sided p-value, and n used."""

    __test__ = False  # not a test class, whatever its name

    statistic: float
    p_value: float
    n: int


@dataclass(frozen=True)
class Interval:
    """An estimate with its lower and upper bound."""

    estimate: float
    lower: float
    upper: float


def _vector(values: ArrayLike, name: str) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise DataError(f"{name} must be one-dimensional, has shape {vector.shape}", field=name)
    if not np.isfinite(vector).all():
        raise DataError(f"{name} holds a value that is not finite", field=name)
    return vector


def _paired(a: ArrayLike, b: ArrayLike) -> tuple[Floats, Floats]:
    left, right = _vector(a, "a"), _vector(b, "b")
    if len(left) != len(right):
        raise DataError(f"paired samples differ in number: {len(left)} and {len(right)}")
    return left, right


def mean_and_standard_error(values: ArrayLike) -> MeanError:
    """Mean and standard error (standard deviation with ddof 1 over sqrt n); NaN where undefined."""
    vector = _vector(values, "values")
    n = len(vector)
    mean = float(vector.mean()) if n else math.nan
    error = float(vector.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    return MeanError(mean, error, n)


def binomial_test(wins: int, losses: int) -> TestResult:
    """Two-sided exact binomial test of wins against losses, p0 = .5; ties are left out by the caller.

    Returns:
        statistic = wins / (wins + losses); with no decided game statistic .5 and p-value 1.
    """
    if wins < 0 or losses < 0:
        raise DataError(f"wins and losses are counts, not {wins} and {losses}")
    n = wins + losses
    if n == 0:
        return TestResult(0.5, 1.0, 0)
    return TestResult(wins / n, float(stats.binomtest(wins, n, 0.5).pvalue), n)


def paired_t_test(a: ArrayLike, b: ArrayLike) -> TestResult:
    """Two-sided paired t-test of mean(a - b) = 0.

    Returns:
        statistic = mean difference. Fewer than two pairs: p-value 1. All differences equal: p-value 1 if they
        are 0, else 0.
    """
    left, right = _paired(a, b)
    difference = left - right
    n = len(difference)
    if n == 0:
        return TestResult(math.nan, 1.0, 0)
    mean = float(difference.mean())
    if n == 1:
        return TestResult(mean, 1.0, 1)
    error = float(difference.std(ddof=1)) / math.sqrt(n)
    if error <= 1e-15 * max(1.0, abs(mean)):
        return TestResult(mean, 1.0 if mean == 0.0 else 0.0, n)
    return TestResult(mean, float(2.0 * stats.t.sf(abs(mean / error), n - 1)), n)


def paired_bootstrap(
    a: ArrayLike, b: ArrayLike, *, rounds: int = 10_000, level: float = 0.95, seed: int = 0
) -> tuple[Interval, float]:
    """Percentile interval and two-sided p-value of mean(a - b), resampling pairs.

    The p-value is 2 * min(share of resampled means <= 0, share >= 0), each with one added to numerator and
    denominator, at most 1.

    Returns:
        (interval of the mean difference, p-value); NaN interval and p-value 1 without pairs.
    """
    left, right = _paired(a, b)
    difference = left - right
    n = len(difference)
    if n == 0:
        return Interval(math.nan, math.nan, math.nan), 1.0
    generator = np.random.default_rng(seed)
    means = np.empty(rounds)
    block = max(1, 2_000_000 // n)
    for start in range(0, rounds, block):
        stop = min(rounds, start + block)
        means[start:stop] = difference[generator.integers(n, size=(stop - start, n))].mean(axis=1)
    lower, upper = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    below = (1 + int((means <= 0).sum())) / (rounds + 1)
    above = (1 + int((means >= 0).sum())) / (rounds + 1)
    interval = Interval(float(difference.mean()), float(lower), float(upper))
    return interval, min(1.0, 2.0 * min(below, above))


def bootstrap_interval(
    values: ArrayLike,
    statistic: Callable[[Floats], float] | None = None,
    *,
    rounds: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap of a statistic (default: the mean) of [n] values; NaN without values."""
    vector = _vector(values, "values")
    if not len(vector):
        return Interval(math.nan, math.nan, math.nan)
    compute = statistic or (lambda sample: float(sample.mean()))
    generator = np.random.default_rng(seed)
    drawn = [compute(vector[generator.integers(len(vector), size=len(vector))]) for _ in range(rounds)]
    lower, upper = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(compute(vector), float(lower), float(upper))


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion (no continuity correction); (NaN, 0, 1) for n = 0.

    Args:
        successes: between 0 and n; half successes (ties) are allowed.
    """
    if n < 0 or not 0 <= successes <= n:
        raise DataError(f"successes must lie between 0 and n, not {successes} of {n}")
    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = float(stats.norm.ppf((1 + level) / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    lower = 0.0 if successes == 0 else max(0.0, centre - half)
    upper = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(share, lower, upper)


@dataclass(frozen=True)
class DirectionVerdict:
    """Whether measured numbers repeat a published difference.

    Attributes:
        verdict: confirmed | contradicted | undecided.
        published_difference: a - b as printed.
        measured_difference: mean of a - b (NaN without samples).
        p_value: two-sided, paired over seeds where both have the same seeds, else Welch (1 if untestable).
        n: pairs, or the smaller sample.
        paired: which of the two.
    """

    verdict: Direction
    published_difference: float
    measured_difference: float
    p_value: float
    n: int
    paired: bool


def direction_verdict(
    published_a: float,
    published_b: float,
    measured_a: Mapping[int, float] | ArrayLike,
    measured_b: Mapping[int, float] | ArrayLike,
    *,
    higher_is_better: bool = True,
    alpha: float = 0.05,
) -> DirectionVerdict:
    """Compare the sign of a published difference with the measured one.

    Args:
        published_a, published_b: the two printed numbers.
        measured_a, measured_b: by seed (paired over the seeds both have, with two or more of them), or plain
            samples: equal lengths are taken as paired in order.
        higher_is_better: only reverses both differences, so it never changes the verdict; it fixes the sign
            of the reported differences (positive = a is better).
        alpha: significance level.

    Returns:
        confirmed: significant and same sign; contradicted: significant and opposite sign; undecided: not
        significant, untestable (fewer than two samples), or published as equal.
    """
    sign = 1.0 if higher_is_better else -1.0
    published = sign * (published_a - published_b)
    left, right, paired = _samples(measured_a, measured_b)
    if paired:
        test = paired_t_test(left, right)
        difference, p_value, n = test.statistic, test.p_value, test.n
    else:
        n = min(len(left), len(right))
        difference = float(left.mean() - right.mean()) if n else math.nan
        p_value = _welch(left, right)
    difference *= sign
    verdict: Direction = "undecided"
    if p_value < alpha and published != 0 and math.isfinite(published) and difference != 0:
        verdict = "confirmed" if (difference > 0) == (published > 0) else "contradicted"
    return DirectionVerdict(verdict, published, difference, p_value, n, paired)


def _samples(a: Mapping[int, float] | ArrayLike, b: Mapping[int, float] | ArrayLike) -> tuple[Floats, Floats, bool]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        shared = sorted(set(a) & set(b))
        if len(shared) >= 2:
            return _vector([a[s] for s in shared], "a"), _vector([b[s] for s in shared], "b"), True
        return _vector(list(a.values()), "a"), _vector(list(b.values()), "b"), False
    if isinstance(a, Mapping) or isinstance(b, Mapping):
        raise DataError("give both samples by seed, or both as plain values")
    left, right = _vector(a, "a"), _vector(b, "b")
    return left, right, len(left) == len(right)


def _welch(a: Floats, b: Floats) -> float:
    if len(a) < 2 or len(b) < 2:
        return 1.0
    if a.std() == 0 and b.std() == 0:
        return 1.0 if a.mean() == b.mean() else 0.0
    return float(stats.ttest_ind(a, b, equal_var=False).pvalue)
