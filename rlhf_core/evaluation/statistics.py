"""Statistics of comparisons: standard errors, paired tests over prompts, intervals, corrections.

Tests over worlds are in `rlhf_core.evaluation.worlds`, verdicts in `tasks.studies.verdicts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError, NumericsError

Floats = NDArray[np.float64]
#: Deviation of differences below which they are equal, as a share of the largest value: rounding of the values.
ROUNDING = 1e-12


@dataclass(frozen=True)
class Interval:
    """An estimate with its lower and upper bound."""

    estimate: float
    lower: float
    upper: float


def _vector(values: ArrayLike, name: str) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise DataError(f"{name} contains a value that is not finite", field=name)
    return vector


def require_finite(scores: Iterable[tuple[str, float]], what: str) -> None:
    """Refuses a score that is not finite: NaN is neither above nor below, so it would count as wrong or tied.

    Args:
        scores: (whose, score).
        what: the noun of a score in the message.

    Raises:
        NumericsError: names the first such score.
    """
    for name, score in scores:
        if not math.isfinite(score):
            raise NumericsError(f"{what} of {name} is {score}, which compares with nothing; look at what gave it")


def mean_and_standard_error(values: ArrayLike) -> tuple[float, float]:
    """Returns the mean and standard error (standard deviation with ddof 1 over sqrt n); NaN where undefined."""
    vector = _vector(values, "values")
    n = len(vector)
    mean = float(vector.mean()) if n else math.nan
    return mean, float(vector.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan


def binomial_p(wins: int, losses: int) -> float:
    """Returns the two-sided exact binomial p of wins against losses, p0 = .5, ties left out; 1 without a decided
    game."""
    from scipy import stats

    return float(stats.binomtest(wins, wins + losses, 0.5).pvalue) if wins + losses else 1.0


def paired_t_test(a: ArrayLike, b: ArrayLike) -> tuple[float, float]:
    """Returns mean(a - b) and the p-value of the two-sided paired t-test of it.

    It compares two models over the same prompts and describes these models only: a study tests over worlds
    (`rlhf_core.evaluation.worlds`). The p-value is 1 where there is no test: fewer than two pairs, or differences that
    are all equal and so do not say how much they vary.
    """
    from scipy import stats

    left, right = _vector(a, "a"), _vector(b, "b")
    difference = left - right
    if len(difference) < 2:
        return float(difference.mean()) if len(difference) else math.nan, 1.0
    mean = float(difference.mean())
    if float(difference.std(ddof=1)) <= ROUNDING * float(np.abs([left, right]).max()):
        return mean, 1.0
    return mean, float(stats.ttest_1samp(difference, 0.0).pvalue)


def bootstrap_interval(values: ArrayLike, *, rounds: int = 1000, level: float = 0.95, seed: int = 0) -> Interval:
    """Returns the percentile bootstrap of the mean of [n] values; NaN without values."""
    vector = _vector(values, "values")
    if not len(vector):
        return Interval(math.nan, math.nan, math.nan)
    generator = np.random.default_rng(seed)
    drawn = [vector[generator.integers(len(vector), size=len(vector))].mean() for _ in range(rounds)]
    lower, upper = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(vector.mean()), float(lower), float(upper))


def wilson_interval(successes: float, n: int, level: float = 0.95) -> Interval:
    """Returns the Wilson score interval of a proportion (no continuity correction); (NaN, 0, 1) for n = 0.

    Args:
        successes: between 0 and n; half successes (ties) are allowed.
    """
    from scipy import stats

    if n == 0:
        return Interval(math.nan, 0.0, 1.0)
    z = float(stats.norm.ppf((1 + level) / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    lower = 0.0 if successes == 0 else max(0.0, centre - half)
    upper = 1.0 if successes == n else min(1.0, centre + half)
    return Interval(share, lower, upper)


def holm(p_values: Sequence[float]) -> list[float]:
    """Returns p-values corrected for their number, in the order given: below alpha with a family-wise error of at most
    alpha.

    Source: Holm 1979, step-down: the k-th smallest of m is multiplied by m - k + 1, never below the one before it,
    at most 1.
    """
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def gatekept(p_values: Sequence[float]) -> list[float]:
    """Returns p-values of which the first is the primary one, corrected so that the family-wise error is at most alpha.

    The first is tested at alpha. The others are tested only if it is significant, then with Holm's correction for their
    number: a corrected p is never below the first. A family with a true first hypothesis errs only if the first does;
    in any other, Holm's correction holds.

    Source: Dmitrienko, Offen and Westfall 2003 (serial gatekeeping); Westfall and Krishen 2001.
    """
    first, *others = p_values
    return [first, *(max(first, p) for p in holm(others))]


Verdict = Literal["regression", "improvement", "no difference", "not comparable"]


@dataclass(frozen=True)
class Change:
    """A benchmark's difference between two evaluations of the same items, in the items' own units.

    Attributes:
        difference: mean of now - before over `n` items; NaN for n = 0.
        lower, upper: its interval, wide enough that all benchmarks' intervals hold together at the level asked for.
    """

    difference: float
    lower: float
    upper: float
    n: int
    verdict: Verdict


def change(before: Mapping[str, float], now: Mapping[str, float], *, benchmarks: int, level: float = 0.95) -> Change:
    """Compares the scores of the items that both evaluations have.

    Args:
        before, now: score by item, higher is better.
        benchmarks: how many are compared at once; each interval has level 1 - (1 - level) / benchmarks (Bonferroni),
            from the t distribution of the paired differences.
        level: of all intervals together.

    Returns:
        a regression if the whole interval is below 0.

    Raises:
        DataError: a score that is not finite.
    """
    from scipy import stats

    shared = sorted(before.keys() & now.keys())
    differences = np.array([now[item] - before[item] for item in shared], dtype=np.float64)
    if not np.isfinite(differences).all():
        raise DataError("a score is not finite", field="score")
    n = len(differences)
    if n < 2:
        mean = float(differences[0]) if n else math.nan
        return Change(mean, -math.inf, math.inf, n, "not comparable")
    mean = float(differences.mean())
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    quantile = float(stats.t.ppf(1 - (1 - level) / (2 * benchmarks), n - 1))
    lower, upper = mean - quantile * error, mean + quantile * error
    verdict: Verdict = "regression" if upper < 0 else "improvement" if lower > 0 else "no difference"
    return Change(mean, lower, upper, n, verdict)
