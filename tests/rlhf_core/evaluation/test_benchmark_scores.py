"""Scores of benchmarks by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_scores import (
    ARENA_SCORES,
    arena_win_rate,
    corpus_bleu,
    mt_bench_scores,
    right_choices,
    win_rate,
)
from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.judges.replies import ARENA_LABELS, parse_arena_hard


def test_soft_win_rates():
    result = win_rate([2, 1, 1.5, 1.75], "alpaca")
    assert result["alpaca_wr"] == pytest.approx(56.25)
    assert result["alpaca_wr_se"] == pytest.approx(np.std([1, 0, 0.5, 0.75], ddof=1) / 2 * 100)


def test_invalid_preferences_are_dropped_and_counted_and_zero_is_a_draw():
    result = win_rate([2, None, float("nan"), 2.5, 0.5, 0, -1, float("inf")], "alpaca")
    assert result["alpaca_invalid"] == 6
    assert result["alpaca_wr"] == pytest.approx(75.0)
    assert math.isnan(win_rate([], "alpaca")["alpaca_wr"])
    assert math.isnan(win_rate([2], "alpaca")["alpaca_wr_se"])


def test_mt_bench_has_means_by_turn_without_missing_scores():
    result = mt_bench_scores([(1, 8), (1, 6), (2, 5), (2, None), (1, -1), (2, math.nan)])
    assert (result["mtbench_turn1"], result["mtbench_turn2"]) == (7, 5)
    assert result["mtbench"] == pytest.approx(19 / 3)
    assert result["mtbench_missing"] == 3
    assert math.isnan(mt_bench_scores([])["mtbench"])


def test_the_likeliest_choice_per_character_counts_and_the_first_of_equal_ones():
    table = {"no": -4.0, "absolutely": -6.0, "é": -1.0, "ab": -2.0}
    questions = [
        {"id": "1", "question": "Q", "choices": ["no", "absolutely"], "answer_index": 1},
        {"id": "2", "question": "R", "choices": ["é", "ab"], "answer_index": 0},
    ]
    asked = []

    def likelihoods(contexts, choices):
        asked.extend(zip(contexts, choices, strict=True))
        return [table[choice] for choice in choices]

    assert right_choices(questions, likelihoods) == [True, True]
    assert asked == [("Q", "no"), ("Q", "absolutely"), ("R", "é"), ("R", "ab")]
    assert right_choices([], likelihoods) == []
    with pytest.raises(NumericsError, match="question '1'"):
        right_choices(questions, lambda contexts, choices: [math.nan] * 4)


def test_bleu_by_hand():
    # every n-gram is right; 6 words against 7
    short = corpus_bleu(["the cat sat on the mat"], ["the cat sat on the mat today"])
    assert short == pytest.approx(100 * math.exp(1 - 7 / 6))
    # 4/5 words, 2/4 pairs, 1/3 triples; no 4-gram of 2 matches, which counts as 1/2 of one
    assert corpus_bleu(["a b c d e"], ["a b c x e"]) == pytest.approx(100 * (4 / 5 * 2 / 4 * 1 / 3 * 0.5 / 2) ** 0.25)
    # counts are of the whole corpus, marks are words, and case counts
    found = corpus_bleu(["hello, world!", "so it is said"], ["Hello, world!", "so it is said"])
    assert found == pytest.approx(100 * (7 / 8 * 5 / 6 * 3 / 4 * 1 / 2) ** 0.25)
    with pytest.raises(DataError, match="1 translations against 0 references"):
        corpus_bleu(["a"], [])


def game(id_, first, text):
    return Game(id_, first, "arena_hard", parse_arena_hard(text), text)


def test_by_hand_with_swapped_sides_and_strong_verdicts():
    games = [
        game("1", "baseline", "[[A>>B]]"),  # baseline wins three times
        game("1", "model", "[[A>B]]"),  # model wins once
        game("2", "baseline", "[[B>>A]]"),  # model wins three times
        game("2", "model", "[[A=B]]"),  # half
        game("3", "baseline", "no idea"),  # left out with its other game
        game("3", "model", "[[B>A]]"),
    ]
    result = arena_win_rate(games)
    assert result["arena_wr"] == pytest.approx(100 * (0 * 3 + 1 + 3 + 0.5) / 8)
    assert result["arena_invalid"] == 2
    assert result["arena_wr_lower"] <= result["arena_wr"] <= result["arena_wr_upper"]


def test_a_judge_that_answers_one_order_only_decides_nothing():
    games = [game(str(i), side, text) for i in range(9) for side, text in (("baseline", "hm"), ("model", "[[A>B]]"))]
    result = arena_win_rate(games)
    assert math.isnan(result["arena_wr"])
    assert result["arena_invalid"] == 18


outcomes = st.lists(st.sampled_from(ARENA_LABELS), min_size=2, max_size=60)


def bradley_terry_win_rate(scores: np.ndarray, weights: np.ndarray) -> float:
    """Returns the win rate in percent from the Bradley-Terry likelihood by Newton's method: the reference for
    the closed form."""
    valid = weights > 0
    score, weight = scores[valid], weights[valid]
    if not len(score):
        return math.nan
    if (score == 0).all() or (score == 1).all():
        return 100.0 * float(score[0])
    strength = 0.0
    for _ in range(100):
        p = 1.0 / (1.0 + math.exp(-strength))
        step = float(((score - p) * weight).sum()) / (p * (1.0 - p) * float(weight.sum()))
        strength += max(-2.0, min(2.0, step))
        if abs(step) < 1e-12:
            break
    return 100.0 / (1.0 + math.exp(-strength))


def rate_of(labels, first="model"):
    return arena_win_rate([game(str(i), first, f"[[{label}]]") for i, label in enumerate(labels)])


@given(outcomes)
def test_the_weighted_mean_is_the_bradley_terry_win_rate(labels):
    scores, weights = (np.array(column, float) for column in zip(*map(ARENA_SCORES.__getitem__, labels), strict=True))
    assert rate_of(labels)["arena_wr"] == pytest.approx(bradley_terry_win_rate(scores, weights), abs=1e-6)


def test_nothing_valid_is_nan_and_one_sided_results_are_not_fifty():
    empty = arena_win_rate([Game("1", "model", "arena_hard", None, "")])
    assert math.isnan(empty["arena_wr"])
    assert empty["arena_invalid"] == 1
    assert arena_win_rate([game("1", "model", "[[A>B]]")] * 3)["arena_wr"] == 100
