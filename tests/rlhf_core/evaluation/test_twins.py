"""A row against itself: standard errors of the right size pass, others do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import worlds as t


def test_the_band_of_forty_is_that_of_the_chi_square() -> None:
    band = t.calibration_of_p_values([0.5] * 40).band
    assert band == pytest.approx((24.433 / 40, 59.342 / 40), abs=1e-4)


def test_each_difference_is_standardised_by_those_before_it() -> None:
    found = t.standardised_p([3.0, -1.0], variance=2.0, degrees=4)
    second = 1 / math.sqrt((4 * 2.0 + 9.0) / 5)
    assert found == pytest.approx([2 * stats.t.sf(3 / math.sqrt(2), 4), 2 * stats.t.sf(second, 5)])


def experiment(generator: np.random.Generator, after: float) -> t.Calibration:
    """Forty differences of two rows, standardised by six others with a deviation of their own."""
    p_values: list[float] = []
    for row in (1.0, 4.0):
        variance = float(np.mean(generator.normal(0, row, size=6) ** 2))
        p_values += t.standardised_p(list(generator.normal(0, row * after, size=20)), variance, 6)
    return t.calibration_of_p_values(p_values)


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
        t.calibration_of_p_values(t.standardised_p(differences, variance, 4))
