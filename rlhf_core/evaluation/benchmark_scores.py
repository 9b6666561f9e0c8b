"""Scores of a policy on benchmarks: AlpacaEval, Arena-Hard, MT-Bench, multiple choice by likelihood, BLEU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.judges.games import Game
from rlhf_core.evaluation.statistics import bootstrap_interval, mean_and_standard_error

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


def win_rate(preferences: ArrayLike, name: str) -> dict[str, float]:
    """Returns the metrics of a win rate in percent.

    Args:
        preferences: [n] soft preferences in [1, 2], 2 = model wins; NaN, None and values outside are dropped
            and counted; 0 counts as a draw.
        name: of the benchmark.

    Returns:
        {<name>_wr: mean(preference - 1) * 100, <name>_wr_se: ddof 1, <name>_invalid}; NaN where undefined.
    """
    cleaned = clean_preferences(preferences)
    rate, error = mean_and_standard_error(cleaned[~np.isnan(cleaned)] - 1.0)
    invalid = int(np.isnan(cleaned).sum())
    return {f"{name}_wr": rate * 100.0, f"{name}_wr_se": error * 100.0, f"{name}_invalid": invalid}


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
        {arena_wr, arena_wr_lower, arena_wr_upper, arena_invalid}, with each strong verdict as three battles; NaN rates
        without a valid game.
    """
    labels = [game.label_for_model for game in games]
    one_sided = {game.id for game, label in zip(games, labels, strict=True) if label not in ARENA_SCORES}
    found = [
        ARENA_SCORES[label] for game, label in zip(games, labels, strict=True) if label and game.id not in one_sided
    ]
    battles = np.array([score for score, times in found for _ in range(times)])
    interval = bootstrap_interval(battles, rounds=_ROUNDS, level=_LEVEL, seed=_SEED)
    return {
        "arena_wr": 100.0 * float(battles.sum() / len(battles)) if len(battles) else math.nan,
        "arena_wr_lower": 100.0 * interval.lower,
        "arena_wr_upper": 100.0 * interval.upper,
        "arena_invalid": len(games) - len(found),
    }


def mt_bench_scores(rows: Sequence[tuple[int, float | None]]) -> dict[str, float]:
    """Returns means per turn and over all scores that are not missing.

    Args:
        rows: (turn 1 or 2, score 1 to 10) per judged answer; None, NaN and -1 (FastChat's mark) are missing.

    Returns:
        {mtbench: mean over all scores (FastChat), mtbench_turn1, mtbench_turn2, mtbench_missing}; NaN where there is no
        score.
    """
    by_turn: dict[int, list[float]] = {1: [], 2: []}
    missing = 0
    for turn, score in rows:
        if score is None or math.isnan(score) or score == -1:
            missing += 1
        else:
            by_turn[turn].append(float(score))
    means = {f"mtbench_turn{turn}": _mean(scores) for turn, scores in by_turn.items()}
    return {"mtbench": _mean(by_turn[1] + by_turn[2]), **means, "mtbench_missing": missing}


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
