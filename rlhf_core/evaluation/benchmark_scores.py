"""Scores of a policy on benchmarks: AlpacaEval, Arena-Hard, MT-Bench, multiple choice by likelihood, BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.statistics import bootstrap_interval

Floats = NDArray[np.float64]
#: Score of A and number of battles of each verdict of Arena-Hard.
ARENA_SCORES: dict[str, tuple[float, int]] = {
    "A>>B": (1.0, 3),
    "A>B": (1.0, 1),
    "A=B": (0.5, 1),
    "B>A": (0.0, 1),
    "B>>A": (0.0, 3),
}
#: Resamples, seed and level of Arena-Hard's published bootstrap.
_ROUNDS, _SEED, _LEVEL = 100, 42, 0.95


def clean_preferences(preferences: ArrayLike) -> Floats:
    """Returns preferences as float64, with NaN for invalid ones.

    0 is AlpacaEval's old mark of a draw and becomes 1.5; other values outside [1, 2] are invalid.

    Args:
        preferences: [n] numbers; None counts as NaN.
    """
    values = np.array([np.nan if p is None else p for p in np.asarray(preferences, dtype=object)], dtype=float)
    values = np.where(values == 0.0, 1.5, values)
    with np.errstate(invalid="ignore"):
        return np.where((values >= 1.0) & (values <= 2.0), values, np.nan)


def win_rate(preferences: ArrayLike) -> dict[str, float]:
    """Returns the win rate in percent.

    Args:
        preferences: [n] soft preferences in [1, 2], 2 = model wins; NaN, None and values outside are dropped
            and counted; 0 counts as a draw.

    Returns:
        {win_rate: mean(preference - 1) * 100, standard_error: ddof 1, in percent points,
        discrete_win_rate: share above 1.5 plus half the share at 1.5, n, n_invalid}. Without a valid
        preference the rates are NaN; with one the standard error is.
    """
    cleaned = clean_preferences(preferences)
    valid = cleaned[~np.isnan(cleaned)] - 1.0
    n = len(valid)
    return {
        "win_rate": float(valid.mean() * 100.0) if n else float("nan"),
        "standard_error": float(valid.std(ddof=1) / np.sqrt(n) * 100.0) if n > 1 else float("nan"),
        "discrete_win_rate": (
            float(((valid > 0.5).mean() + 0.5 * (valid == 0.5).mean()) * 100.0) if n else float("nan")
        ),
        "n": n,
        "n_invalid": len(cleaned) - n,
    }


def arena_win_rate(games: Sequence[Game]) -> dict[str, float]:
    """Returns Arena-Hard's win rate against the baseline in percent, with a bootstrap interval over battles.

    The published score (v0.1) is a Bradley-Terry fit; with one baseline its maximum-likelihood win rate equals the
    weighted mean score (a win 1, a tie 1/2, a loss 0), which is what is computed here. The published script returns 50
    when every battle has the same outcome, because it cannot fit; here that is 100 or 0.

    Args:
        games: games of template `arena_hard`, usually two per prompt with sides swapped. A prompt with an invalid game
            is left out, and its games count as invalid; the published script keeps the other game, so that a judge that
            answers one order only decides by position.

    Returns:
        {win_rate, lower, upper, n_games, n_battles, n_invalid}: a game that counts three times is three battles; NaN
        rates without a valid game.
    """
    labels = [game.label_for_model for game in games]
    one_sided = {game.id for game, label in zip(games, labels, strict=True) if label not in ARENA_SCORES}
    found = [
        ARENA_SCORES[label] for game, label in zip(games, labels, strict=True) if label and game.id not in one_sided
    ]
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


def mt_bench_scores(rows: Sequence[tuple[int, float | None]]) -> dict[str, float]:
    """Returns means per turn and overall: FastChat averages over all scores that are not missing, PAR over both turns.

    Args:
        rows: (turn 1 or 2, score 1 to 10) per judged answer; None, NaN and -1 (FastChat's mark) are missing.

    Returns:
        {mtbench: mean over all scores (FastChat), mtbench_turn1, mtbench_turn2, mtbench_turn_mean:
        (T1 + T2) / 2 (PAR), n, n_missing}; NaN where there is no score.
    """
    by_turn: dict[int, list[float]] = {1: [], 2: []}
    missing = 0
    for turn, score in rows:
        if turn not in by_turn:
            raise ValueError(f"turn must be 1 or 2, not {turn}")
        if score is None or math.isnan(score) or score == -1:
            missing += 1
        else:
            by_turn[turn].append(float(score))
    first, second = (_mean(by_turn[turn]) for turn in (1, 2))
    return {
        "mtbench": _mean(by_turn[1] + by_turn[2]),
        "mtbench_turn1": first,
        "mtbench_turn2": second,
        "mtbench_turn_mean": (first + second) / 2,
        "n": len(by_turn[1]) + len(by_turn[2]),
        "n_missing": missing,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def right_choices(
    questions: Sequence[Mapping[str, Any]], likelihoods: Callable[[list[str], list[str]], Sequence[float]]
) -> list[bool]:
    """Returns for each question whether its choice with the largest log-probability per character, the first of equal
    ones, is the right one: the harness's acc_norm.

    Args:
        questions: rows with `question`, `choices` and `answer_index`.
        likelihoods: (contexts, continuations) -> summed log-probabilities in nats.

    Raises:
        NumericsError: a log-probability that is not a number.
    """
    pairs = [(row["question"], choice) for row in questions for choice in row["choices"]]
    sums = iter(likelihoods([context for context, _ in pairs], [choice for _, choice in pairs]) if pairs else ())
    right = []
    for row in questions:
        values = np.array([next(sums) / max(len(choice), 1) for choice in row["choices"]], dtype=np.float64)
        if np.isnan(values).any():
            raise NumericsError(f"question '{row['id']}': a choice's log-probability is not a number")
        right.append(int(np.argmax(values)) == row["answer_index"])
    return right


def corpus_bleu(translations: Sequence[str], references: Sequence[str]) -> float:
    """Returns the corpus BLEU in percent with sacrebleu's default settings, one reference each (ALARM, §4.1).

    Args:
        translations: [sentences].
        references: [sentences].

    Raises:
        DataError: no sentence, or numbers that differ.
    """
    import sacrebleu

    if not translations or len(translations) != len(references):
        raise DataError(f"BLEU of {len(translations)} translations against {len(references)} references")
    return float(sacrebleu.corpus_bleu(list(translations), [list(references)]).score)
