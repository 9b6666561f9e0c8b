"""Regression test of a model on several benchmarks: paired differences with simultaneous intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rlhf_core.errors import DataError

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
        DataError: a level outside (0, 1), no benchmark, or a score that is not finite.
    """
    from scipy import stats

    if not 0 < level < 1 or benchmarks < 1:
        raise DataError(f"level is {level} and benchmarks {benchmarks}; level must be in (0, 1), benchmarks at least 1")
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
