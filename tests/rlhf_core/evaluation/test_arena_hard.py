"""Arena-Hard: weighted mean, its equality with Bradley-Terry, seeded intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.benchmark_scores import ARENA_SCORES, arena_win_rate
from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.judges.replies import ARENA_LABELS, parse_arena_hard


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
    assert result["win_rate"] == pytest.approx(100 * (0 * 3 + 1 + 3 + 0.5) / 8)
    assert result["n_invalid"] == 2
    assert result["lower"] <= result["win_rate"] <= result["upper"]


def test_a_judge_that_answers_one_order_only_decides_nothing():
    games = [game(str(i), side, text) for i in range(9) for side, text in (("baseline", "hm"), ("model", "[[A>B]]"))]
    result = arena_win_rate(games)
    assert math.isnan(result["win_rate"])
    assert result["n_invalid"] == 18


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
    assert rate_of(labels)["win_rate"] == pytest.approx(bradley_terry_win_rate(scores, weights), abs=1e-6)


def test_nothing_valid_is_nan_and_one_sided_results_are_not_fifty():
    empty = arena_win_rate([Game("1", "model", "arena_hard", None, "")])
    assert math.isnan(empty["win_rate"])
    assert empty["n_invalid"] == 1
    assert arena_win_rate([game("1", "model", "[[A>B]]")] * 3)["win_rate"] == 100
