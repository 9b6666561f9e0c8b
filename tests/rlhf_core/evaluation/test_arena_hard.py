"""Arena-Hard: weighted mean, its equality with Bradley-Terry, seeded intervals."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.arena_hard import (
    arena_win_rate,
    score_of_label,
    weighted_win_rate,
)
from rlhf_core.evaluation.judges import Game, JudgeAnswer
from rlhf_core.evaluation.judges.replies import ARENA_LABELS, parse_arena_hard


def game(id_, first, text):
    return Game(id_, first, "arena_hard", parse_arena_hard(text), text, 1)


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
    assert (result["n_games"], result["n_battles"], result["n_invalid"]) == (4, 8, 2)
    assert result["lower"] <= result["win_rate"] <= result["upper"]


def test_a_judge_that_answers_one_order_only_decides_nothing():
    games = [game(str(i), side, text) for i in range(9) for side, text in (("baseline", "hm"), ("model", "[[A>B]]"))]
    result = arena_win_rate(games)
    assert math.isnan(result["win_rate"])
    assert (result["n_games"], result["n_invalid"]) == (0, 18)


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


@given(outcomes)
def test_the_weighted_mean_is_the_bradley_terry_win_rate(labels):
    pairs = [score_of_label(label) for label in labels]
    scores, weights = np.array([s for s, _ in pairs]), np.array([float(w) for _, w in pairs])
    closed = weighted_win_rate(scores, weights, rounds=0)["win_rate"]
    assert closed == pytest.approx(bradley_terry_win_rate(scores, weights), abs=1e-6)


def test_against_a_logistic_regression_over_duplicated_battles():
    """As published: duplicate battles, a tie is one win for each, elo to win probability."""
    from sklearn.linear_model import LogisticRegression

    labels = ["A>>B"] * 7 + ["A>B"] * 11 + ["A=B"] * 9 + ["B>A"] * 13 + ["B>>A"] * 4
    x, y = [], []
    for label in labels:
        score, weight = score_of_label(label)
        for _ in range(weight):
            x += [[math.log(10), -math.log(10)]] * 2
            y += [1, 0] if score == 0.5 else [int(score)] * 2
    fit = LogisticRegression(fit_intercept=False, C=np.inf, tol=1e-8).fit(np.array(x), np.array(y))
    a, b = 400 * fit.coef_[0]
    published = 100 / (1 + 10 ** ((b - a) / 400))
    scores, weights = (np.array(v, float) for v in zip(*map(score_of_label, labels), strict=True))
    assert weighted_win_rate(scores, weights)["win_rate"] == pytest.approx(published, abs=1e-3)


@given(outcomes)
def test_swapping_sides_mirrors(labels):
    there = arena_win_rate([game(str(i), "model", f"[[{x}]]") for i, x in enumerate(labels)], rounds=0)
    back = arena_win_rate([game(str(i), "baseline", f"[[{x}]]") for i, x in enumerate(labels)], rounds=0)
    assert there["win_rate"] + back["win_rate"] == pytest.approx(100)


def test_bootstrap_is_seeded_and_prompts_can_be_kept_together():
    games = [
        g for i in range(40) for g in [game(str(i), s, "[[A>B]]" if i % 2 else "[[B>A]]") for s in ("model", "model")]
    ]
    first, again = arena_win_rate(games, seed=1), arena_win_rate(games, seed=1)
    assert first == again
    together = arena_win_rate(games, unit="prompt", rounds=400)
    apart = arena_win_rate(games, unit="battle", rounds=400)
    assert together["upper"] - together["lower"] > 1.2 * (apart["upper"] - apart["lower"])


def test_nothing_valid_is_nan_and_one_sided_results_are_not_fifty():
    empty = arena_win_rate([Game("1", "model", "arena_hard", JudgeAnswer.invalid("no"), "", 3)])
    assert math.isnan(empty["win_rate"])
    assert empty["n_invalid"] == 1
    assert arena_win_rate([game("1", "model", "[[A>B]]")] * 3)["win_rate"] == 100
