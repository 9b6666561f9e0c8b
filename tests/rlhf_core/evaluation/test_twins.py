"""A row against itself: standard errors of the right size pass, others do not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import twins as t


def test_the_band_of_forty_is_that_of_the_chi_square() -> None:
    assert t.chi_square_band(40) == pytest.approx((0.61, 1.48), abs=0.005)
    assert t.chi_square_band(40) == pytest.approx((24.433 / 40, 59.342 / 40), abs=1e-4)


def test_each_difference_is_standardised_by_those_before_it() -> None:
    found = t.standardised_p([3.0, -1.0], variance=2.0, degrees=4)
    second = 1 / math.sqrt((4 * 2.0 + 9.0) / 5)
    assert found == pytest.approx([2 * stats.t.sf(3 / math.sqrt(2), 4), 2 * stats.t.sf(second, 5)])
    assert t.standardised_p([3.0, -1.0]) == pytest.approx([2 * stats.t.sf(1 / 3, 1)])
    known = t.standardised_p([2.0, -4.0], variance=4.0, degrees=math.inf)
    assert known == pytest.approx([2 * stats.norm.sf(1), 2 * stats.norm.sf(2)])


def experiment(generator: np.random.Generator, before: float, after: float, degrees: int) -> t.Calibration:
    """Forty differences of two rows, standardised by a few others with a deviation of their own."""
    p_values: list[float] = []
    for row in (1.0, 4.0):
        variance = float(np.mean(generator.normal(0, row * before, size=degrees) ** 2)) if degrees else 0.0
        p_values += t.standardised_p(list(generator.normal(0, row * after, size=20)), variance, degrees)
    return t.calibration_of_p_values(p_values)


@pytest.mark.parametrize("degrees", [6, 0])
def test_sound_twins_are_refused_in_five_percent_of_experiments(degrees: int) -> None:
    generator, experiments = np.random.default_rng(5), 600
    found = [experiment(generator, 1.0, 1.0, degrees) for _ in range(experiments)]
    assert {len(one.p_values) for one in found} == {40 if degrees else 38}
    outside = np.mean([not one.band[0] <= one.mean_square <= one.band[1] for one in found])
    not_uniform = np.mean([one.uniform_p < 0.05 for one in found])
    error = math.sqrt(0.05 * 0.95 / experiments)
    assert (outside, not_uniform) == (pytest.approx(0.05, abs=3 * error), pytest.approx(0.05, abs=3 * error))


@pytest.mark.parametrize(
    ("differences", "message"),
    [([0.0, 1.0], "the first differences are 0"), ([1.0, math.nan], "not a finite number"), ([], "no differences")],
)
def test_what_cannot_be_standardised_is_refused(differences: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        t.calibration_of_p_values(t.standardised_p(differences))
