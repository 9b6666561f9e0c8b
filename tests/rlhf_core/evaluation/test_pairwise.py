"""Methods against each other: win rates without ties, and the paper's two tests."""

from __future__ import annotations

import pytest
from scipy import stats

from rlhf_core.evaluation.pairwise import Record, compared, outcome_of_means, outcome_of_wins, record_of


def test_a_win_rate_leaves_ties_out_and_is_a_half_where_all_are_ties() -> None:
    assert record_of([1, 1, 1, -1, 0, 0]).win_rate == 75.0
    assert record_of([0, 0]).win_rate == 50.0
    assert record_of([0, 0]).p_value == 1.0
    assert record_of([]).win_rate is None, "without a game 50 % would be invented"


def test_prompts_that_one_side_lacks_are_not_compared() -> None:
    assert compared({"a": 1, "b": 2, "c": 3}, {"a": 0, "b": 2, "d": 9}) == {"a": 1, "b": 0}
    assert compared({"a": 1}, {"a": 0}, higher_is_better=False) == {"a": -1}


def test_records_of_seeds_are_pooled_for_the_binomial_test() -> None:
    pooled = Record(30, 5, 10) + Record(25, 0, 15)
    assert pooled == Record(55, 5, 25)
    assert pooled.p_value == pytest.approx(stats.binomtest(55, 80, 0.5).pvalue)
    assert outcome_of_wins(pooled).text.startswith("Win (")
    assert outcome_of_wins(Record(25, 5, 55)).word == "Lose"
    assert outcome_of_wins(Record(28, 0, 25)).text == "Tie"


def test_means_are_compared_by_a_paired_t_test_in_the_direction_of_the_reward() -> None:
    own, other = [1.0, 2.0, 3.5, 4.0], [0.5, 1.6, 2.9, 3.5]
    found = outcome_of_means(own, other)
    assert found.word == "Win"
    assert found.p_value == pytest.approx(stats.ttest_rel(own, other).pvalue)
    assert outcome_of_means(own, other, higher_is_better=False).word == "Lose"
    assert outcome_of_means([1.0, 2.0], [1.0, 2.0]).word == "Tie"
