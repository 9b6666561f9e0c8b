"""Arena-Hard v0.1: two games per prompt, `>>` counts three times, win rate against one baseline.

The published score is a Bradley-Terry fit; with one baseline its maximum-likelihood win rate equals the
weighted mean score (a win 1, a tie 1/2, a loss 0), which is what is computed here. The published script
returns 50 when every battle has the same outcome, because it cannot fit; here that is 100 or 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.statistics import bootstrap_interval

#: Score of A and number of battles of each verdict.
SCORES: dict[str, tuple[float, int]] = {
    "A>>B": (1.0, 3),
    "A>B": (1.0, 1),
    "A=B": (0.5, 1),
    "B>A": (0.0, 1),
    "B>>A": (0.0, 3),
}


#: Resamples, seed and level of the published bootstrap (v0.1).
_ROUNDS, _SEED, _LEVEL = 100, 42, 0.95


def arena_win_rate(games: Sequence[Game]) -> dict[str, float]:
    """Returns the win rate against the baseline in percent, with a bootstrap interval over battles.

    Args:
        games: games of template `arena_hard`, usually two per prompt with sides swapped. A prompt with an invalid game
            is left out, and its games count as invalid; the published script keeps the other game, so that a judge that
            answers one order only decides by position.

    Returns:
        {win_rate, lower, upper, n_games, n_battles, n_invalid}: a game that counts three times is three battles; NaN
        rates without a valid game.
    """
    labels = [game.label_for_model for game in games]
    one_sided = {game.id for game, label in zip(games, labels, strict=True) if label not in SCORES}
    found = [SCORES[label] for game, label in zip(games, labels, strict=True) if label and game.id not in one_sided]
    battles = np.array([score for score, times in found for _ in range(times)])
    interval = bootstrap_interval(battles, rounds=_ROUNDS, level=_LEVEL, seed=_SEED)
    return {
        "win_rate": 100.0 * float(battles.sum() / len(battles)) if len(battles) else math.nan,
        "lower": 100.0 * interval.lower,
        "upper": 100.0 * interval.upper,
        "n_games": len(found),
        "n_battles": len(battles),
        "n_invalid": len(games) - len(found),
    }
