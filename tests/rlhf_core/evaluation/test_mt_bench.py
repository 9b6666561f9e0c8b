"""MT-Bench means and missing scores."""

import math

import pytest

from rlhf_core.evaluation.mt_bench import mt_bench_scores


def test_means_per_turn_and_overall_with_missing_scores():
    result = mt_bench_scores([(1, 8), (1, 6), (2, 5), (2, None), (1, -1), (2, math.nan)])
    assert (result["mtbench_turn1"], result["mtbench_turn2"]) == (7, 5)
    assert result["mtbench"] == pytest.approx(19 / 3)
    assert result["mtbench_turn_mean"] == 6
    assert (result["n"], result["n_missing"]) == (3, 3)


def test_both_overalls_agree_when_nothing_is_missing():
    result = mt_bench_scores([(1, 8), (2, 6), (1, 3), (2, 9.5)])
    assert result["mtbench"] == result["mtbench_turn_mean"]


def test_no_score_is_nan_and_other_turns_are_refused():
    assert math.isnan(mt_bench_scores([])["mtbench"])
    with pytest.raises(ValueError, match="turn"):
        mt_bench_scores([(3, 5)])
