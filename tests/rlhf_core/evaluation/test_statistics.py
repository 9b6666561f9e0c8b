"""Statistics against scipy, hand-computed values and their own symmetries."""

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
    result = s.mean_and_standard_error([1, 2, 3, 4])
    assert (result.mean, result.n) == (2.5, 4)
    assert result.standard_error == pytest.approx(math.sqrt(5 / 3) / 2)
    assert math.isnan(s.mean_and_standard_error([1]).standard_error)
    assert math.isnan(s.mean_and_standard_error([]).mean)
    with pytest.raises(DataError, match="finite"):
        s.mean_and_standard_error([1, math.nan])


def test_binomial_by_hand():
    assert s.binomial_test(5, 0).p_value == pytest.approx(2 / 32)
    assert s.binomial_test(3, 3).p_value == 1.0
    assert s.binomial_test(0, 0) == s.TestResult(0.5, 1.0, 0)
    assert s.binomial_test(60, 40).p_value == pytest.approx(0.0568879, abs=1e-6)


@given(st.integers(0, 40), st.integers(0, 40))
def test_binomial_is_symmetric(wins, losses):
    assert s.binomial_test(wins, losses).p_value == pytest.approx(s.binomial_test(losses, wins).p_value)


def test_paired_t_test_against_scipy_and_its_edges():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=12), rng.normal(0.3, size=12)
    assert s.paired_t_test(a, b).p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert s.paired_t_test([1, 2], [1, 2]).p_value == 1.0
    assert s.paired_t_test([2, 3], [1, 2]).p_value == 0.0
    assert s.paired_t_test([1], [2]).p_value == 1.0
    with pytest.raises(DataError, match="differ in number"):
        s.paired_t_test([1, 2], [1])


def test_paired_bootstrap_agrees_with_the_t_interval_and_is_seeded():
    rng = np.random.default_rng(1)
    a, b = rng.normal(0.2, 1, 300), rng.normal(0, 1, 300)
    interval, p = s.paired_bootstrap(a, b, seed=5)
    assert (interval, p) == s.paired_bootstrap(a, b, seed=5)
    half = 1.96 * np.std(a - b, ddof=1) / math.sqrt(300)
    assert interval.upper - interval.lower == pytest.approx(2 * half, rel=0.05)
    assert p == pytest.approx(s.paired_t_test(a, b).p_value, abs=0.02)
    assert s.paired_bootstrap([], [])[1] == 1.0
    assert s.paired_bootstrap([1, 1], [1, 1])[1] == 1.0


def test_bootstrap_interval_of_any_statistic():
    result = s.bootstrap_interval(np.arange(101.0), lambda v: float(np.median(v)), rounds=300)
    assert result.estimate == 50
    assert 35 < result.lower < 50 < result.upper < 65


def test_wilson_against_scipy_and_at_the_ends():
    for k, n in [(0, 10), (10, 10), (3, 10), (512, 600)]:
        ours = s.wilson_interval(k, n)
        theirs = stats.binomtest(k, n).proportion_ci(method="wilson")
        assert (ours.lower, ours.upper) == pytest.approx((theirs.low, theirs.high), abs=1e-12)
    assert s.wilson_interval(0, 0).upper == 1.0
    with pytest.raises(DataError):
        s.wilson_interval(3, 2)


@pytest.mark.parametrize(
    ("published", "a", "b", "verdict"),
    [
        ((30, 25), {0: 0.6, 1: 0.62, 2: 0.61}, {0: 0.5, 1: 0.51, 2: 0.505}, "confirmed"),
        ((25, 30), {0: 0.6, 1: 0.62, 2: 0.61}, {0: 0.5, 1: 0.51, 2: 0.505}, "contradicted"),
        ((30, 25), {0: 0.6, 1: 0.4, 2: 0.5}, {0: 0.5, 1: 0.51, 2: 0.505}, "undecided"),
        ((30, 30), {0: 0.6, 1: 0.62, 2: 0.61}, {0: 0.5, 1: 0.51, 2: 0.505}, "undecided"),
        ((30, 25), {0: 0.6}, {0: 0.5}, "undecided"),
        ((30, 25), {}, {}, "undecided"),
    ],
)
def test_direction_verdicts(published, a, b, verdict):
    assert s.direction_verdict(*published, a, b).verdict == verdict
    assert s.direction_verdict(*published, a, b, higher_is_better=False).verdict == verdict


def test_pairing_by_seed_uses_shared_seeds_and_beats_pooling():
    drift = {k: 10.0 * k for k in range(5)}
    a = {k: v + 1 + 0.01 * k for k, v in drift.items()} | {9: 1000.0}
    b = {k: drift[k] for k in reversed(range(5))}
    paired = s.direction_verdict(1, 0, a, b)
    assert paired.verdict == "confirmed"
    assert (paired.paired, paired.n) == (True, 5)
    assert paired.measured_difference == pytest.approx(1.02)
    other_seeds = {k + 100: v for k, v in b.items()}
    unpaired = s.direction_verdict(1, 0, a, other_seeds)
    assert unpaired.verdict == "undecided"
    assert not unpaired.paired


@given(numbers, st.integers(0, 3))
def test_exchanging_the_rows_never_changes_the_verdict(a, seed):
    b = (np.array(a) + np.random.default_rng(seed).normal(size=len(a))).tolist()
    there, back = s.direction_verdict(2, 1, a, b), s.direction_verdict(1, 2, b, a)
    assert there.verdict == back.verdict
    assert there.p_value == pytest.approx(back.p_value)
