"""Rows are compared over the worlds that both have; a missing world is named."""

from __future__ import annotations

import math

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.worlds import paired
from tasks.report.significance import by_world, compare, compare_constant, exploratory


def test_a_runs_seed_is_its_world() -> None:
    row, main = {0: 40.0, 1: 42.0, 2: 47.0}, {0: 45.0, 1: 46.0, 2: 48.0}
    found = compare("token", row, "segment", main)
    assert found is not None
    assert found.effect == paired({"token": by_world(row), "segment": by_world(main)}, "token", "segment")
    assert (found.effect.estimate, found.effect.worlds, found.missing) == (pytest.approx(-10 / 3), 3, None)


def test_a_missing_world_is_left_out_and_named() -> None:
    found = compare("token", {0: 1.0, 1: 3.0, 7: 90.0}, "segment", {0: 2.0, 1: 5.0, 2: 4.0, 3: 4.0})
    assert found is not None
    assert (found.effect.estimate, found.effect.worlds) == (-1.5, 2)
    assert found.missing == "token lacks world 2, 3; segment lacks world 7"


def test_no_shared_world_is_no_comparison() -> None:
    assert compare("token", {0: 1.0}, "segment", {1: 2.0}) is None
    assert compare_constant("token", {}, 50.0) is None


def test_one_world_and_equal_differences_have_no_test() -> None:
    one = compare("token", {0: 1.0}, "segment", {0: 2.0})
    equal = compare("token", {0: 1.0, 1: 2.0}, "segment", {0: 2.0, 1: 3.0})
    assert one is not None
    assert equal is not None
    assert (one.effect.p, one.effect.reason) == (None, "one world")
    assert (equal.effect.p, equal.effect.reason) == (None, "no variance")


def test_a_score_that_is_not_finite_is_refused_by_row_and_world() -> None:
    with pytest.raises(DataError, match="row 'token' has the value nan in world 1"):
        compare("token", {0: 1.0, 1: math.nan}, "segment", {0: 2.0, 1: 3.0})


@pytest.mark.parametrize(
    ("seeds", "spent"), [((9, 200), True), ((1100,), True), ((10**6, 10**6 + 7), False), ((), False)]
)
def test_seeds_that_were_seen_while_settings_were_made_are_exploratory(seeds: tuple[int, ...], spent: bool) -> None:
    assert exploratory(seeds) == spent
