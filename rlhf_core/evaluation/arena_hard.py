"""Arena-Hard v0.1: two games per prompt, `>>` counts three times, win rate against one baseline.

The published score is a Bradley-Terry fit; with one baseline its maximum-likelihood win rate equals the
weighted mean score (a win 1, a tie 1/2, a loss 0), which is what is computed here. The published script
returns 50 when every battle has the same outcome, because it cannot fit; here that is 100 or 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rlhf_core.errors import DataError
from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.statistics import bootstrap_interval

STRONG_WEIGHT = 3
SCORES: dict[str, tuple[float, int]] = {
    "A>>B": (1.0, STRONG_WEIGHT),
    "A>B": (1.0, 1),
    "A=B": (0.5, 1),
    "B>A": (0.0, 1),
    "B>>A": (0.0, STRONG_WEIGHT),
}


def score_of_label(label: str | None, weight: int = STRONG_WEIGHT) -> tuple[float, int]:
    """Returns (score of A, weight) of a verdict; (nan, 0) for a missing or unknown one."""
    if label not in SCORES:
        return math.nan, 0
    score, times = SCORES[label]
    return score, weight if times == STRONG_WEIGHT else times


def arena_win_rate(
    games: Sequence[Game],
    *,
    weight: int = STRONG_WEIGHT,
    rounds: int = 100,
    level: float = 0.95,
    unit: Literal["battle", "prompt"] = "battle",
    seed: int = 42,
) -> dict[str, float]:
    """Returns the win rate against the baseline in percent, with a bootstrap interval.

    Args:
        games: games of template `arena_hard`, usually two per prompt with sides swapped. A prompt with an invalid game
            is left out, and its games count as invalid; the published script keeps the other game, so that a judge that
            answers one order only decides by position.
        weight: how often `>>` counts.
        rounds: bootstrap resamples (published: 100).
        level: of the percentile interval (published v0.1: .95).
        unit: what is resampled: `battle` as published (a game that counts three times is three battles),
            `prompt` keeps a prompt's games together, which respects their dependence.
        seed: of the bootstrap.

    Returns:
        {win_rate, lower, upper, n_games, n_battles, n_invalid}; NaN rates without a valid game.
    """
    labels = [game.label_for_model for game in games]
    ids = [game.id for game in games]
    one_sided = {game.id for game, label in zip(games, labels, strict=True) if label not in SCORES}
    pairs = [
        (math.nan, 0) if id_ in one_sided else score_of_label(label, weight)
        for id_, label in zip(ids, labels, strict=True)
    ]
    scores = np.array([score for score, _ in pairs])
    weights = np.array([times for _, times in pairs], dtype=float)
    return weighted_win_rate(scores, weights, groups=ids, rounds=rounds, level=level, unit=unit, seed=seed)


def weighted_win_rate(
    scores: NDArray[np.float64],
    weights: NDArray[np.float64],
    *,
    groups: Sequence[str] | None = None,
    rounds: int = 100,
    level: float = 0.95,
    unit: Literal["battle", "prompt"] = "battle",
    seed: int = 42,
) -> dict[str, float]:
    """Returns the rate of `arena_win_rate` from [n] scores in {0, .5, 1} and [n] whole-number weights (0: invalid)."""
    valid = weights > 0
    if unit == "prompt" and groups is None:
        raise DataError("unit 'prompt' needs the prompt of each game", field="groups")
    result = {
        "win_rate": math.nan,
        "lower": math.nan,
        "upper": math.nan,
        "n_games": int(valid.sum()),
        "n_battles": int(weights[valid].sum()),
        "n_invalid": int((~valid).sum()),
    }
    if not valid.any():
        return result
    score, weight = scores[valid], weights[valid]
    result["win_rate"] = 100.0 * float((score * weight).sum() / weight.sum())
    if rounds < 1:
        return result
    if unit == "battle":
        battles = np.repeat(score, weight.astype(int))
        interval = bootstrap_interval(battles, rounds=rounds, level=level, seed=seed)
    else:
        names = np.array(list(groups or ()), dtype=object)[valid]
        _, prompt = np.unique(names.astype(str), return_inverse=True)
        total = np.bincount(prompt, weights=score * weight)
        mass = np.bincount(prompt, weights=weight)
        prompts = np.arange(len(mass), dtype=float)

        def rate(drawn: NDArray[np.float64]) -> float:
            chosen = drawn.astype(int)
            return float(total[chosen].sum() / mass[chosen].sum())

        interval = bootstrap_interval(prompts, rate, rounds=rounds, level=level, seed=seed)
    result["lower"], result["upper"] = 100.0 * interval.lower, 100.0 * interval.upper
    return result
