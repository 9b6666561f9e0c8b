"""A row against itself: standard errors of the right size pass, others do not."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import twins as t
from rlhf_core.evaluation.worlds import World

Runs = dict[str, dict[World, list[float]]]


def runs(
    generator: np.random.Generator, worlds: range, deviations: tuple[float, ...] = (1.0, 4.0), seeds: int = 2
) -> Runs:
    """Rows of which each world has its own level."""
    return {
        f"row{i}": {world: list(generator.normal(generator.normal(0, 9), deviation, size=seeds)) for world in worlds}
        for i, deviation in enumerate(deviations)
    }


def test_the_band_of_forty_is_that_of_the_chi_square() -> None:
    assert t.chi_square_band(40) == pytest.approx((0.61, 1.48), abs=0.005)
    assert t.chi_square_band(40) == pytest.approx((24.433 / 40, 59.342 / 40), abs=1e-4)


def test_a_known_variance_gives_normal_p_values() -> None:
    found = t.standardised_p([2.0, -4.0], variance=4.0, degrees=math.inf)
    assert found == pytest.approx([2 * stats.norm.sf(1), 2 * stats.norm.sf(2)])


def test_each_difference_is_standardised_by_those_before_it() -> None:
    found = t.standardised_p([3.0, -1.0], variance=2.0, degrees=4)
    second = 1 / math.sqrt((4 * 2.0 + 9.0) / 5)
    assert found == pytest.approx([2 * stats.t.sf(3 / math.sqrt(2), 4), 2 * stats.t.sf(second, 5)])
    assert t.standardised_p([3.0, -1.0]) == pytest.approx([2 * stats.t.sf(1 / 3, 1)])


def test_the_variance_of_runs_is_pooled_within_worlds() -> None:
    values: Runs = {"a": {1: [10.0, 12.0], 2: [50.0, 53.0, 56.0], 3: [1.0]}}
    assert t.run_variance(values, "a") == t.RunVariance((2 + 18) / 3, 3)


@pytest.mark.parametrize("reference", [True, False])
def test_sound_twins_are_refused_in_five_percent_of_experiments(reference: bool) -> None:
    """Forty differences, of two rows with deviations 1:4, with few reference runs or none."""
    generator, outside, not_uniform, experiments = np.random.default_rng(5), 0, 0, 600
    for _ in range(experiments):
        known = runs(generator, range(100, 106)) if reference else None
        found = t.twin_calibration(runs(generator, range(200, 220)), known)
        assert len(found.p_values) == (40 if reference else 38)
        outside += not found.band[0] <= found.mean_square <= found.band[1]
        not_uniform += found.uniform_p < 0.05
    error = math.sqrt(0.05 * 0.95 / experiments)
    assert outside / experiments == pytest.approx(0.05, abs=3 * error)
    assert not_uniform / experiments == pytest.approx(0.05, abs=3 * error)


def test_p_values_of_one_experiment_are_independent() -> None:
    generator = np.random.default_rng(2)
    found = np.array([t.standardised_p(list(generator.normal(size=6)), 1.0, 0) for _ in range(4000)])
    correlation = np.corrcoef(stats.chi2.isf(found, 1).T)
    assert np.abs(correlation - np.eye(5)).max() < 4 / math.sqrt(4000)


def test_standard_errors_of_half_the_size_are_found() -> None:
    """Prompts say 1.6 points where runs differ by 4: the mean square is about 6."""
    generator = np.random.default_rng(1)
    differences = generator.normal(0, 4.0, size=40)
    found = t.calibration_of_p_values(t.standardised_p(list(differences), 1.6**2, math.inf))
    assert found.mean_square == pytest.approx(float(np.mean((differences / 1.6) ** 2)))
    assert not found.sound
    assert t.calibration_of_p_values(t.standardised_p(list(differences), 4.0**2, math.inf)).sound


def test_a_reference_that_varies_less_than_the_twins_is_found() -> None:
    generator = np.random.default_rng(3)
    twins, known = runs(generator, range(200, 220), (3.0, 12.0)), runs(generator, range(100, 120))
    assert not t.twin_calibration(twins, known).sound
    assert t.twin_calibration(twins).sound  # blind to the size, as its docstring says


def test_twins_that_are_one_run_are_found() -> None:
    generator = np.random.default_rng(4)
    known = runs(generator, range(100, 120))
    same: Runs = {row: {world: [1.0, 1.0] for world in range(200, 220)} for row in known}
    found = t.twin_calibration(same, known)
    assert (found.mean_square, found.sound) == (0.0, False)
    with pytest.raises(DataError, match="first difference is 0"):
        t.twin_calibration(same)


REFUSED: list[tuple[Any, Any, str]] = [
    ({"a": {200: [1.0, 2.0, 3.0]}}, None, "row 'a' has 3 runs in world 200; twins are 2"),
    ({"a": {200: [1.0, math.nan]}}, None, "row 'a' has the value nan in world 200"),
    ({"a": {200: [1.0, 2.0]}}, {"b": {100: [1.0, 2.0]}}, "row 'a' has no reference runs"),
    ({"a": {200: [1.0, 2.0]}}, {"a": {200: [1.0, 2.0]}}, "world 200 among the twins and in the reference"),
    ({"a": {200: [1.0, 2.0]}}, {"a": {100: [1.0]}}, "one run in each world"),
    ({"a": {200: [1.0, 2.0]}}, {"a": {100: [1.0, 1.0]}}, "equal runs in every world"),
    ({"a": {200: [1.0, 2.0]}}, None, "no differences to standardise"),
]


@pytest.mark.parametrize(("twins", "reference", "message"), REFUSED)
def test_what_cannot_be_standardised_is_refused(twins: Any, reference: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        t.twin_calibration(twins, reference)
