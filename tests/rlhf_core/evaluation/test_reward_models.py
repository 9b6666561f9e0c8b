"""Accuracy is strict; calibration is measured on the stated preference."""

import math

import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.reward_bench import calibration, pairwise_accuracy


def test_a_tie_is_wrong():
    result = pairwise_accuracy([2, 1, 1, 5], [1, 1, 2, 0])
    assert (result["accuracy"], result["ties"], result["n"]) == (0.5, 1, 4)
    assert math.isnan(pairwise_accuracy([], [])["accuracy"])
    with pytest.raises(DataError):
        pairwise_accuracy([1], [1, 2])
    with pytest.raises(DataError, match="finite"):
        pairwise_accuracy([math.inf], [1])


def test_calibration_by_hand():
    margin = [math.log(3)] * 3 + [-math.log(3)]  # confidence .75, right three times of four
    result = calibration(margin, [0] * 4)
    assert result["ece"] == pytest.approx(0, abs=1e-12)
    assert result["brier"] == pytest.approx((3 * 0.25**2 + 0.75**2) / 4)
    confident = calibration([20, 20, -20, -20], [0] * 4)
    assert confident["ece"] == pytest.approx(0.5, abs=1e-6)
    assert calibration([0, 0], [0, 0])["ece"] == 0
    assert math.isnan(calibration([], [])["ece"])
