"""Length-controlled win rates of single runs, as tables and figures show them.

The difficulties of instructions are given (`tasks.report.numbers` says where they come from), not found by a run's
fit, which is in `rlhf_core.evaluation.length_controlled`.
"""

from __future__ import annotations

import hashlib
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
class Judged:
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
) -> Judged:
    """Returns verdicts as preferences from 1 (the opponent wins) to 2, NaN without a verdict, with the lengths of both
    answers in characters."""
    own, opponent = (
        {str(row["id"]): float(row["n_chars"]) for row in rows if row["benchmark"] == benchmark}
        for rows in (answers, opponents)
    )
    undecided = dict.fromkeys((*tally.unparsable, *tally.one_sided), math.nan)
    preferred = {**{prompt: 1 + score for prompt, score in tally.scores.items()}, **undecided}
    prompts = sorted(preferred)
    return Judged(prompts, [preferred[p] for p in prompts], [own[p] for p in prompts], [opponent[p] for p in prompts])


def fitted_difficulties(judged: Sequence[Judged], prompts: Sequence[str]) -> Difficulties:
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


def length_controlled(run: str, judged: Judged, difficulty: Difficulties, calibration: Any = None) -> float | None:
    """Returns the length-controlled win rate of a run in percent; None with fewer than `FEWEST` valid preferences.

    Args:
        run: its name in messages.
        difficulty: of every instruction.
        calibration: frame of calibration rows, or None.

    Raises:
        DataError: a length that is not finite, or too few valid preferences. Source: Dubois et al. 2024, see
            `rlhf_core.evaluation.length_controlled`.
    """
    from rlhf_core.evaluation.length_controlled import length_controlled_win_rate

    for prompt, *lengths in zip(judged.prompts, judged.own_length, judged.opponent_length, strict=True):
        if not all(math.isfinite(length) for length in lengths):
            raise DataError(
                f"{run} has an answer to prompt '{prompt}' of length {lengths[0]}, against an answer of {lengths[1]}",
                field="n_chars",
                remedy="Evaluate the run again: lengths are finite numbers",
            )
    valid = sum(math.isfinite(value) for value in judged.preferences)
    problem = too_few_valid(valid, len(judged.preferences))
    if problem is not None:
        raise DataError(f"{run}: {problem}", field="preference", remedy="Evaluate the run with a judge that answers")
    if valid < FEWEST:
        return None
    key = _key(judged, difficulty, calibration)
    if key not in _rates:
        _rates[key] = length_controlled_win_rate(
            judged.prompts,
            judged.preferences,
            judged.own_length,
            judged.opponent_length,
            difficulty,
            calibration,
        )
    return _rates[key]


#: Rates that this process has fitted: tables, figures and claims ask for the same ones.
_rates: dict[bytes, float] = {}


def _key(judged: Judged, difficulty: Difficulties, calibration: Any) -> bytes:
    """Returns a digest of everything that a rate is fitted to."""
    import pandas as pd

    numbers = (judged.preferences, judged.own_length, judged.opponent_length)
    parts: list[Any] = [list(judged.prompts), *(list(map(float, column)) for column in numbers)]
    parts.append(sorted((str(key), float(value)) for key, value in difficulty.items()))
    if calibration is not None:
        parts += [list(calibration.columns), pd.util.hash_pandas_object(calibration).tolist()]
    return hashlib.sha256(repr(parts).encode()).digest()


def standardised(values: Mapping[str, float]) -> dict[str, float]:
    """Returns values with mean 0 and deviation 1; all 0 where they are equal."""
    if not values:
        return {}
    mean = math.fsum(values.values()) / len(values)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values.values()) / len(values))
    return {key: (value - mean) / deviation if deviation else 0.0 for key, value in values.items()}


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

    published = [row for row in rows if "instruction_difficulty" in row]
    if published:
        rows_of = pd.DataFrame([{**row, "index": str(row["id"])} for row in published])
        return difficulty_of_calibration_rows(rows_of), rows_of
    difficulty = fit_difficulty(
        [str(row["variant"]) for row in rows],
        [str(row["id"]) for row in rows],
        [row["preference"] for row in rows],
        [row["model_chars"] for row in rows],
        [row["baseline_chars"] for row in rows],
    )
    variants: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        variants.setdefault(str(row["variant"]), []).append(row)
    frames = [
        make_calibration_rows(
            [str(row["id"]) for row in of_variant],
            [row["preference"] for row in of_variant],
            [row["model_chars"] for row in of_variant],
            [row["baseline_chars"] for row in of_variant],
            difficulty,
        )
        for of_variant in variants.values()
    ]
    return difficulty, pd.concat(frames, ignore_index=True)
