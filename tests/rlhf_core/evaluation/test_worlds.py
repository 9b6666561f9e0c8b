"""Effects whose unit is a world and rows against themselves, against scipy and numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import worlds as w

SEGMENT: dict[w.World, float] = {100: 62.0, 101: 58.0, 102: 60.0}
TOKEN: dict[w.World, float] = {102: 55.0, 100: 55.0, 101: 55.0}
GENERATOR = np.random.default_rng(0)
ROWS: list[dict[w.World, float]] = [dict(enumerate(50 + GENERATOR.normal(row, 1 + row, size=9))) for row in range(2)]


def test_a_paired_effect_by_hand() -> None:
    effect = w.paired(TOKEN, SEGMENT)
    assert (effect.estimate, effect.degrees, effect.worlds, effect.reason) == (-5.0, 2, 3, None)
    assert effect.standard_error == pytest.approx(2 / math.sqrt(3))
    interval = effect.interval()
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx((-9.968, -0.032), abs=1e-3)  # t(2) = 4.303


def test_effects_are_scipys_tests() -> None:
    effect, theirs = w.paired(*ROWS), stats.ttest_rel(*([*row.values()] for row in ROWS))
    interval = effect.interval(0.9)
    assert effect.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx(tuple(theirs.confidence_interval(0.9)))
    assert w.over_worlds(ROWS[1], 50.0).p == pytest.approx(stats.ttest_1samp([*ROWS[1].values()], 50.0).pvalue)


def test_one_world_gives_an_estimate_and_no_test() -> None:
    effect = w.paired({1: 3.0}, {1: 1.0, 2: 5.0})
    assert (effect.estimate, effect.p, effect.interval(), effect.reason) == (2.0, None, None, "one world")
    assert (effect.smallest_visible(), effect.p_within(1.0)) == (None, None)


@pytest.mark.parametrize(("main", "estimate"), [([60.3, 57.1, 59.7], 1.0), ([61.3, 58.1, 60.7], 0.0)])
def test_equal_differences_have_no_p(main: list[float], estimate: float) -> None:
    effect = w.paired(dict(enumerate([61.3, 58.1, 60.7])), dict(enumerate(main)))
    assert effect.estimate == pytest.approx(estimate)
    assert (effect.p, effect.reason, effect.worlds) == (None, "no variance", 3)


def test_what_is_not_a_measurement_is_refused_by_world() -> None:
    with pytest.raises(DataError, match="the value of world 2 is nan, which is not a finite number"):
        w.over_worlds({1: 1.0, 2: math.nan})
    with pytest.raises(DataError, match="no worlds"):
        w.paired({1: 1.0}, {2: 1.0})


@pytest.mark.parametrize(
    ("degrees", "alpha", "power"), [(1, 0.05, 0.8), (7, 0.05, 0.8), (15, 0.01, 0.9), (4.7, 0.05, 0.5)]
)
def test_the_smallest_visible_effect_has_the_power_asked_for(degrees: float, alpha: float, power: float) -> None:
    smallest = w.Effect(0.0, 2.0, degrees, 8).smallest_visible(alpha, power)
    assert smallest is not None
    bound, lower = stats.t.isf(alpha / 2, degrees), 0.0
    upper = stats.nct.sf(bound, degrees, smallest / 2.0)
    if power == 0.5:  # the wrong side matters little beyond
        lower = stats.nct.cdf(-bound, degrees, smallest / 2.0)
    assert upper + lower == pytest.approx(power, abs=2e-6)


@given(st.floats(-4, 4), st.floats(0.1, 3), st.integers(1, 30), st.floats(0.1, 5))
def test_equivalent_means_that_the_ninety_percent_interval_is_inside(
    estimate: float, error: float, degrees: int, margin: float
) -> None:
    effect = w.Effect(estimate, error, degrees, degrees + 1)
    interval = effect.interval(0.9)
    assert interval is not None
    edge = min(abs(interval.upper - margin), abs(interval.lower + margin))
    if edge > 1e-9:
        p = effect.p_within(margin)
        assert p is not None
        assert (p < w.ALPHA) == (-margin < interval.lower and interval.upper < margin)


def test_the_band_of_forty_is_that_of_the_chi_square() -> None:
    band = w.calibration_of_p_values([0.5] * 40).band
    assert band == pytest.approx((24.433 / 40, 59.342 / 40), abs=1e-4)


def test_each_difference_is_standardised_by_those_before_it() -> None:
    found = w.standardised_p([3.0, -1.0], variance=2.0, degrees=4)
    second = 1 / math.sqrt((4 * 2.0 + 9.0) / 5)
    assert found == pytest.approx([2 * stats.t.sf(3 / math.sqrt(2), 4), 2 * stats.t.sf(second, 5)])


def experiment(generator: np.random.Generator, after: float) -> w.Calibration:
    """Forty differences of two rows, standardised by six others with a deviation of their own."""
    p_values: list[float] = []
    for row in (1.0, 4.0):
        variance = float(np.mean(generator.normal(0, row, size=6) ** 2))
        p_values += w.standardised_p(list(generator.normal(0, row * after, size=20)), variance, 6)
    return w.calibration_of_p_values(p_values)


def test_sound_twins_are_refused_in_five_percent_of_experiments_and_larger_differences_are_found() -> None:
    generator, experiments = np.random.default_rng(5), 600
    found = [experiment(generator, 1.0) for _ in range(experiments)]
    outside = np.mean([not one.band[0] <= one.mean_square <= one.band[1] for one in found])
    not_uniform = np.mean([one.uniform_p < 0.05 for one in found])
    error = math.sqrt(0.05 * 0.95 / experiments)
    assert (outside, not_uniform) == (pytest.approx(0.05, abs=3 * error), pytest.approx(0.05, abs=3 * error))
    assert not any(experiment(generator, 6.0).sound for _ in range(20))


@pytest.mark.parametrize(
    ("differences", "variance", "message"),
    [
        ([0.0, 1.0], 0.0, "the first differences are 0"),
        ([1.0, math.nan], 1.0, "not a finite number"),
        ([], 1.0, "no differences"),
    ],
)
def test_what_cannot_be_standardised_is_refused(differences: list[float], variance: float, message: str) -> None:
    with pytest.raises(DataError, match=message):
        w.calibration_of_p_values(w.standardised_p(differences, variance, 4))
