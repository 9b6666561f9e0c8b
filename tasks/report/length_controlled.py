"""Length-controlled win rates of several models at once, with the difficulty of each instruction in common."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

#: Fewest valid preferences of a model for its fit (five folds of cross-validation).
FEWEST = 5

Key = TypeVar("Key")


@dataclass(frozen=True)
class Judged:
    """One model against one baseline.

    Attributes:
        prompts: [n] instruction ids.
        preferences: [n] in [1, 2], 2 = the model wins; NaN where the verdict is invalid.
        own_length, baseline_length: [n] characters.
    """

    prompts: Sequence[str]
    preferences: Sequence[float]
    own_length: Sequence[float]
    baseline_length: Sequence[float]

    @property
    def enough(self) -> bool:
        return sum(math.isfinite(value) for value in self.preferences) >= FEWEST


def length_controlled(
    judged: Mapping[Key, Judged], calibration: Sequence[Mapping[str, Any]] = ()
) -> dict[Key, tuple[float, dict[str, float]]]:
    """Returns the length-controlled win rate of every model, and the part of it that each prompt contributes.

    A prompt's part is its preference less the length effect that the fitted model finds in it, so that a test
    over prompts compares what the win rates compare.

    Args:
        judged: the models; those with fewer than `FEWEST` valid preferences are left out.
        calibration: judged variants of the baseline: {id, variant, preference, model_chars, baseline_chars}; or the
            published rows, which bring each instruction's difficulty with them: {id, preference in [0, 1],
            std_delta_len, instruction_difficulty, not_gamed_baseline}.

    Returns:
        key -> (percent, {prompt: part in [-1, 2]}). Source: Dubois et al. 2024, see
        `rlhf_core.evaluation.length_controlled`.
    """
    models = {key: rows for key, rows in judged.items() if rows.enough}
    if not models:
        return {}
    from rlhf_core.evaluation.alpaca_calibration import difficulty_of_calibration_rows
    from rlhf_core.evaluation.alpaca_eval import fit_difficulty

    published = [row for row in calibration if "instruction_difficulty" in row]
    if published:
        import pandas as pd

        rows_of = pd.DataFrame([{**row, "index": str(row["id"])} for row in published])
        known = difficulty_of_calibration_rows(rows_of)
        return {key: _fit(rows, known, rows_of) for key, rows in models.items()}
    difficulty = fit_difficulty(
        [str(number) for number, rows in enumerate(models.values()) for _ in rows.prompts],
        [prompt for rows in models.values() for prompt in rows.prompts],
        [value for rows in models.values() for value in rows.preferences],
        [value for rows in models.values() for value in rows.own_length],
        [value for rows in models.values() for value in rows.baseline_length],
    )
    frame = _calibration_frame(calibration, difficulty)
    return {key: _fit(rows, difficulty, frame) for key, rows in models.items()}


def _calibration_frame(rows: Sequence[Mapping[str, Any]], difficulty: Mapping[Any, float]) -> Any:
    """Returns the calibration rows of every variant on the judged instructions, as one frame; None without any."""
    import pandas as pd

    from rlhf_core.evaluation.alpaca_calibration import make_calibration_rows

    variants: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if str(row["id"]) in difficulty:
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
    return pd.concat(frames, ignore_index=True) if frames else None


def _fit(rows: Judged, difficulty: Mapping[Any, float], calibration: Any) -> tuple[float, dict[str, float]]:
    from rlhf_core.evaluation.alpaca_calibration import standardised_length_difference
    from rlhf_core.evaluation.length_controlled import FEATURES, length_controlled_win_rate
    from rlhf_core.evaluation.win_rates import clean_preferences

    fit = length_controlled_win_rate(
        rows.preferences,
        rows.own_length,
        rows.baseline_length,
        difficulty,
        calibration,
        instruction_ids=rows.prompts,
    )
    length, hardness, constant = (fit.coefficients[name] for name in FEATURES)
    delta = np.tanh(standardised_length_difference(rows.own_length, rows.baseline_length))
    level = hardness * np.array([difficulty[prompt] for prompt in rows.prompts]) + constant
    effect = 1 / (1 + np.exp(-(level + length * delta))) - 1 / (1 + np.exp(-level))
    parts = clean_preferences(rows.preferences) - 1 - effect
    prompts = {p: float(part) for p, part in zip(rows.prompts, parts, strict=True) if np.isfinite(part)}
    return fit.lc_win_rate, prompts
