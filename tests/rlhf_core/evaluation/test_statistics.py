"""Statistics against scipy, hand-computed values and their own symmetries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import statistics as s

numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=20)


def test_mean_and_standard_error():
    assert s.mean_and_standard_error([1, 2, 3, 4]) == pytest.approx((2.5, math.sqrt(5 / 3) / 2))
    assert math.isnan(s.mean_and_standard_error([1])[1])
    assert math.isnan(s.mean_and_standard_error([])[0])
    with pytest.raises(DataError, match="finite"):
        s.mean_and_standard_error([1, math.nan])


@pytest.mark.parametrize(("wins", "losses", "p"), [(5, 0, 2 / 32), (3, 3, 1.0), (0, 0, 1.0), (60, 40, 0.0568879)])
def test_binomial_by_hand(wins, losses, p):
    assert s.binomial_p(wins, losses) == pytest.approx(p, abs=1e-6)


def test_paired_t_test_against_scipy_and_its_edges():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=12), rng.normal(0.3, size=12)
    assert s.paired_t_test(a, b)[1] == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert s.paired_t_test([1, 2], [1, 2]) == (0.0, 1.0)
    assert s.paired_t_test([1], [2]) == (-1.0, 1.0)
    assert s.paired_t_test([2, 3], [1, 2]) == (1.0, 1.0)
    assert s.paired_t_test([61.3, 58.1, 60.7], [60.3, 57.1, 59.7])[1] == 1.0  # equal but for rounding
    assert s.paired_t_test([2, 3.001], [1, 2])[1] < 0.001


def test_wilson_against_scipy_and_at_the_ends():
    for k, n in [(0, 10), (10, 10), (3, 10), (512, 600)]:
        ours = s.wilson_interval(k, n)
        theirs = stats.binomtest(k, n).proportion_ci(method="wilson")
        assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert s.wilson_interval(0, 0).upper == 1.0


def naive_holm(p_values):
    """By the definition: the largest of (m - j) p_(j) over the p-values up to and including its own."""
    order = sorted(p_values)
    return [min(1.0, max((len(order) - j) * q for j, q in enumerate(order) if q <= p)) for p in p_values]


@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_against_its_definition(p_values):
    corrected = s.holm(p_values)
    assert corrected == pytest.approx(naive_holm(p_values))
    assert all(p <= c <= min(1.0, len(p_values) * p) + 1e-12 for p, c in zip(p_values, corrected, strict=True))


def test_a_primary_hypothesis_keeps_the_others_from_being_tested() -> None:
    """The first stays as it is; the others have Holm's p, and never one below the first's."""
    assert s.gatekept([0.03]) == [0.03]
    assert s.gatekept([0.2, 0.001, 0.04]) == [0.2, 0.2, 0.2]
    assert s.gatekept([0.001, 0.02, 0.001]) == pytest.approx([0.001, 0.02, 0.002])


def scores(values: np.ndarray) -> dict[str, float]:
    return {str(i): float(v) for i, v in enumerate(values)}


def test_a_clear_loss_is_a_regression_and_its_mirror_an_improvement() -> None:
    before = np.random.default_rng(0).uniform(size=100)
    worse = s.change(scores(before), scores(before - 0.2 + 0.01 * np.arange(100) / 100), benchmarks=4)
    assert worse.verdict == "regression"
    assert worse.difference == pytest.approx(-0.195, abs=0.001)
    assert s.change(scores(before), scores(before + 0.2), benchmarks=4).verdict == "improvement"


def test_only_shared_items_are_compared() -> None:
    found = s.change({"a": 1.0, "b": 1.0, "old": 0.0}, {"a": 0.0, "b": 0.0, "new": 9.0}, benchmarks=1)
    assert (found.n, found.difference) == (2, -1.0)
    assert s.change({"a": 1.0}, {"b": 1.0}, benchmarks=1).verdict == "not comparable"


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        s.change({"a": float("nan"), "b": 1.0}, {"a": 1.0, "b": 1.0}, benchmarks=1)
