"""Length-controlled win rates of single runs, as tables and figures show them.

The difficulties of instructions are given (`tasks.report.numbers` says where they come from), not found by a run's
fit, which is in `rlhf_core.evaluation.length_controlled`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import DataError
from rlhf_core.evaluation.protocols import Tally
from tasks.running.doubtful_numbers import too_few_valid

#: Fewest valid preferences of a run for its fit (five folds of cross-validation).
FEWEST = 5

#: Instruction -> difficulty.
Difficulties = Mapping[Any, float]


@dataclass(frozen=True)
class JudgedRun:
    """One run against one opponent: the SFT model, another row or AlpacaEval's baseline.

    Attributes:
        prompts: [n] instruction ids.
        preferences: [n] in [1, 2], 2 = the run wins; NaN where the verdict is invalid.
        own_length, opponent_length: [n] characters.
    """

    prompts: Sequence[str]
    preferences: Sequence[float]
    own_length: Sequence[float]
    opponent_length: Sequence[float]


def preferences_of(
    tally: Tally, answers: Sequence[Mapping[str, Any]], opponents: Sequence[Mapping[str, Any]], benchmark: str
) -> JudgedRun:
    """Returns verdicts as preferences, with the lengths of both answers."""
    own, opponent = (
        {str(row["id"]): float(row["n_chars"]) for row in rows if row["benchmark"] == benchmark}
        for rows in (answers, opponents)
    )
    undecided = dict.fromkeys((*tally.unparsable, *tally.one_sided), math.nan)
    preferred = {**{prompt: 1 + score for prompt, score in tally.scores.items()}, **undecided}
    prompts = sorted(preferred)
    return JudgedRun(
        prompts, [preferred[p] for p in prompts], [own[p] for p in prompts], [opponent[p] for p in prompts]
    )


def fitted_difficulties(judged: Sequence[JudgedRun], prompts: Sequence[str]) -> Difficulties:
    """Returns the difficulty of each prompt, fitted jointly over policies against one opponent; 0 with one policy."""
    from rlhf_core.evaluation.length_controlled import fit_difficulty

    known = dict.fromkeys(prompts, 0.0)
    if len(judged) < 2:
        return known
    rows = [
        (policy, *row)
        for policy, one in enumerate(judged)
        for row in zip(one.prompts, one.preferences, one.own_length, one.opponent_length, strict=True)
    ]
    return known | dict(fit_difficulty(*(list(column) for column in zip(*rows, strict=True))))


def standardised(values: Mapping[str, float]) -> Difficulties:
    """Returns values with mean 0 and deviation 1; all 0 where they are equal."""
    if not values:
        return {}
    mean = math.fsum(values.values()) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values.values()) / len(values))
    return {key: (value - mean) / deviation if deviation else 0.0 for key, value in values.items()}


def length_controlled(run: str, judged: JudgedRun, difficulty: Difficulties, calibration: Any = None) -> float | None:
    """Returns the length-controlled win rate of a run in percent; None with fewer than `FEWEST` valid preferences.

    Args:
        run: its name in messages.
        difficulty: of every instruction.
        calibration: frame of calibration rows, or None.

    Raises:
        DataError: too few valid preferences. Source: Dubois et al. 2024, see `rlhf_core.evaluation.length_controlled`.
    """
    from rlhf_core.evaluation.length_controlled import length_controlled_win_rate

    valid = sum(math.isfinite(value) for value in judged.preferences)
    problem = too_few_valid(valid, len(judged.preferences))
    if problem is not None:
        raise DataError(f"{run}: {problem}", field="preference", remedy="Evaluate the run with a judge that answers")
    if valid < FEWEST:
        return None
    lengths = judged.own_length, judged.opponent_length
    return length_controlled_win_rate(judged.prompts, judged.preferences, *lengths, difficulty, calibration)


def calibration_of(rows: Sequence[Mapping[str, Any]]) -> tuple[Difficulties, Any]:
    """Returns the difficulty of each instruction and the frame of calibration rows.

    Args:
        rows: judged variants of the baseline: {id, variant, preference, model_chars, baseline_chars}, from which the
            difficulties are fitted; or the published rows, which bring them: {id, preference in [0, 1],
            std_delta_len, instruction_difficulty, not_gamed_baseline}.
    """
    import pandas as pd

    from rlhf_core.evaluation.length_controlled import (
        difficulty_of_calibration_rows,
        fit_difficulty,
        make_calibration_rows,
    )

    frame = pd.DataFrame([*rows]).assign(id=[str(row["id"]) for row in rows])
    if "instruction_difficulty" in frame:
        published = frame.dropna(subset=["instruction_difficulty"]).assign(index=lambda found: found["id"])
        return difficulty_of_calibration_rows(published), published
    ids, wins, own, other = (frame[name] for name in ("id", "preference", "model_chars", "baseline_chars"))
    difficulty = fit_difficulty([str(row["variant"]) for row in rows], list(ids), wins, own, other)
    made = []
    for places in frame.groupby("variant", sort=False).groups.values():
        made.append(make_calibration_rows(list(ids[places]), wins[places], own[places], other[places], difficulty))
    return difficulty, pd.concat(made, ignore_index=True)
