"""Win rates of soft preferences, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.win_rates import win_rate


def test_win_rate_by_hand():
    result = win_rate([2, 1, 1.5, 1.75])
    assert result["win_rate"] == pytest.approx(56.25)
    assert result["standard_error"] == pytest.approx(np.std([1, 0, 0.5, 0.75], ddof=1) / 2 * 100)
    assert result["discrete_win_rate"] == pytest.approx(62.5)


def test_invalid_preferences_are_dropped_and_counted_and_zero_is_a_draw():
    result = win_rate([2, None, float("nan"), 2.5, 0.5, 0, -1, float("inf")])
    assert (result["n"], result["n_invalid"]) == (2, 6)
    assert result["win_rate"] == pytest.approx(75.0)
    empty = win_rate([])
    assert math.isnan(empty["win_rate"])
    assert empty["n"] == 0
    assert math.isnan(win_rate([2])["standard_error"])


@given(st.lists(st.floats(1, 2), min_size=2, max_size=30))
def test_swapping_model_and_baseline_mirrors_the_win_rate(preferences):
    there, back = win_rate(preferences), win_rate([3 - p for p in preferences])
    assert there["win_rate"] + back["win_rate"] == pytest.approx(100)
    assert there["standard_error"] == pytest.approx(back["standard_error"], abs=1e-9)
