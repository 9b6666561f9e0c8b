"""Effects whose unit is a world, against scipy and numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rlhf_core.errors import DataError
from rlhf_core.evaluation import worlds as w

#: Differences from the main row by world: -7, -3, -5; seeds are averaged.
VALUES: dict[str, dict[w.World, list[float]]] = {
    "segment": {100: [61.0, 63.0], 101: [58.0], 102: [60.0]},
    "token": {100: [55.0], 101: [56.0, 54.0], 102: [55.0]},
}


def drawn(rows: int = 2, worlds: int = 9, seed: int = 0, first: int = 0) -> dict[str, dict[w.World, list[float]]]:
    generator = np.random.default_rng(seed)
    return {
        f"row{row}": {first + world: list(50 + generator.normal(row, 1 + row, size=2)) for world in range(worlds)}
        for row in range(rows)
    }


def means(values: dict[str, dict[w.World, list[float]]], row: str) -> list[float]:
    return [float(np.mean(seeds)) for seeds in values[row].values()]


def test_a_paired_effect_by_hand() -> None:
    effect = w.paired(VALUES, "token", "segment")
    assert (effect.estimate, effect.degrees, effect.worlds, effect.reason) == (-5.0, 2, 3, None)
    assert effect.standard_error == pytest.approx(2 / math.sqrt(3))
    interval = effect.interval()
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx((-9.968, -0.032), abs=1e-3)  # t(2) = 4.303


def test_a_paired_effect_is_scipys_test_of_world_means() -> None:
    values = drawn()
    effect, theirs = w.paired(values, "row1", "row0"), stats.ttest_rel(means(values, "row1"), means(values, "row0"))
    interval = effect.interval(0.9)
    assert effect.p == pytest.approx(theirs.pvalue, rel=1e-12)
    assert interval is not None
    assert (interval.lower, interval.upper) == pytest.approx(tuple(theirs.confidence_interval(0.9)))


def test_a_row_against_a_constant_is_scipys_one_sample_test() -> None:
    values = drawn()
    assert w.against_constant(values, "row1", 50.0).p == pytest.approx(
        stats.ttest_1samp(means(values, "row1"), 50.0).pvalue
    )
    with pytest.raises(DataError, match="the constant is nan"):
        w.against_constant(values, "row1", math.nan)


def test_more_policy_seeds_with_the_same_mean_change_nothing() -> None:
    more = {row: {world: seeds * 10 for world, seeds in of.items()} for row, of in VALUES.items()}
    assert w.paired(more, "token", "segment") == w.paired(VALUES, "token", "segment")


@given(st.permutations([100, 101, 102]))
def test_the_order_of_worlds_changes_nothing(order: list[int]) -> None:
    shuffled = {row: {world: of[world] for world in order} for row, of in VALUES.items()}
    assert w.paired(shuffled, "token", "segment") == w.paired(VALUES, "token", "segment")


def test_one_world_gives_an_estimate_and_no_test() -> None:
    effect = w.paired({"a": {1: [3.0]}, "b": {1: [1.0]}}, "a", "b")
    assert (effect.estimate, effect.p, effect.interval(), effect.reason) == (2.0, None, None, "one world")
    assert (effect.smallest_visible(), effect.p_within(1.0)) == (None, None)


@pytest.mark.parametrize(("main", "estimate"), [([60.3, 57.1, 59.7], 1.0), ([61.3, 58.1, 60.7], 0.0)])
def test_equal_differences_have_no_p(main: list[float], estimate: float) -> None:
    values = {"a": {i: [v] for i, v in enumerate([61.3, 58.1, 60.7])}, "b": {i: [v] for i, v in enumerate(main)}}
    effect = w.paired(values, "a", "b")
    assert effect.estimate == pytest.approx(estimate)
    assert (effect.p, effect.reason, effect.worlds) == (None, "no variance", 3)


BROKEN: list[tuple[dict[str, dict[w.World, Any]], str]] = [
    ({"a": {1: [1.0], 2: [math.nan]}, "b": {1: [1.0], 2: [2.0]}}, "row 'a' has the value nan in world 2"),
    ({"a": {1: [1.0], 2: [2.0]}, "b": {1: [1.0], 2: [1.0, math.inf]}}, "row 'b' has the value inf in world 2"),
    ({"a": {1: [1.0], 2: [None]}, "b": {1: [1.0], 2: [2.0]}}, "row 'a' has the value None in world 2"),
    ({"a": {1: [1.0], 2: []}, "b": {1: [1.0], 2: [2.0]}}, "row 'a' has no value in world 2"),
    ({"a": {}, "b": {1: [1.0]}}, "row 'a' has no worlds"),
    ({"a": {1: [1.0]}, "B": {1: [1.0]}}, "unknown row 'b'; did you mean 'B'"),
]


@pytest.mark.parametrize(("values", "message"), BROKEN)
def test_what_is_not_a_measurement_is_refused_by_row_and_world(values: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        w.paired(values, "a", "b")


def test_a_world_that_one_row_lacks_is_refused_by_name() -> None:
    values = {"a": {1: [1.0], 2: [2.0], 3: [1.0]}, "b": {1: [1.0]}}
    with pytest.raises(DataError, match=r"row 'b' has no value in world 2, which row 'a' has \(2 worlds are missing"):
        w.paired(values, "a", "b")


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


def test_the_smallest_visible_effect_of_eight_worlds_by_simulation() -> None:
    smallest = w.Effect(0.0, 1 / math.sqrt(8), 7, 8).smallest_visible()
    assert smallest is not None
    samples = np.random.default_rng(0).normal(smallest, 1.0, size=(40_000, 8))
    found = stats.ttest_1samp(samples, 0.0, axis=1).pvalue < 0.05
    assert float(found.mean()) == pytest.approx(0.8, abs=3 * math.sqrt(0.16 / 40_000))


@pytest.mark.parametrize("margin", [0.5, 3.0])
def test_equivalence_is_two_one_sided_tests(margin: float) -> None:
    values = drawn(worlds=8)
    differences = np.subtract(means(values, "row1"), means(values, "row0"))
    sides = [
        stats.ttest_1samp(differences, bound, alternative=side).pvalue
        for bound, side in ((-margin, "greater"), (margin, "less"))
    ]
    assert w.paired(values, "row1", "row0").p_within(margin) == pytest.approx(max(sides))


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


def test_a_margin_is_above_zero() -> None:
    for margin in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(DataError, match="margin"):
            w.Effect(0.0, 1.0, 3, 4).p_within(margin)
