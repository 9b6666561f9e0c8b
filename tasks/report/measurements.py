"""One metric of one run: its value and, where it has prompts of its own, the value of each prompt.

Most metrics are read from a run's `metrics.json`, their prompts from its `judgements.jsonl`. AlpacaEval's
length-controlled win rate is computed here, since an instruction's difficulty is fitted jointly over all
models of a table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tasks.report.outputs import StageOutput

#: The judged or scored benchmark whose items make up a metric, where it has another name.
BENCHMARK_OF = {"alpaca_wr": "alpaca_eval", "arena_wr": "arena_hard", "mtbench": "mt_bench"}


@dataclass(frozen=True)
class Measurement:
    """A metric of one run.

    Attributes:
        value: in the column's unit.
        prompts: prompt id -> that prompt's value, in any unit in which a larger mean is a larger value;
            empty for a metric without prompts of its own.
    """

    value: float
    prompts: Mapping[str, float] = field(default_factory=dict)


#: {row name: {seed: measurement}}
BySeed = Mapping[int, Measurement]
Measurements = Mapping[str, BySeed]
Outputs = Mapping[str, Mapping[int, StageOutput]]
Calibration = Sequence[Mapping[str, Any]]
JointMetric = Callable[[Outputs, Calibration], Measurements]


def prompt_values(output: StageOutput, metric: str) -> dict[str, float]:
    """Mean `outcome` of each prompt's valid judgements (games, turns)."""
    benchmark = BENCHMARK_OF.get(metric, metric)
    found: dict[str, list[float]] = {}
    for row in output.judgements:
        if row["benchmark"] == benchmark and row.get("valid", True) and row.get("outcome") is not None:
            found.setdefault(str(row["id"]), []).append(float(row["outcome"]))
    return {prompt: sum(values) / len(values) for prompt, values in found.items()}


def recorded(outputs: Outputs, metric: str) -> Measurements:
    """A metric as the runs recorded it; runs without it are left out."""
    return {
        name: {
            seed: Measurement(output.metrics[metric], prompt_values(output, metric))
            for seed, output in by_seed.items()
            if metric in output.metrics
        }
        for name, by_seed in outputs.items()
    }


@dataclass(frozen=True)
class _Judged:
    """AlpacaEval rows of one run: [n] preferences in [1, 2] and lengths in characters."""

    prompts: list[str]
    preferences: list[float]
    own_length: list[float]
    baseline_length: list[float]


def _alpaca_rows(output: StageOutput) -> _Judged | None:
    rows = [row for row in output.judgements if row["benchmark"] == "alpaca_eval"]
    rows = [row for row in rows if row.get("model_chars") is not None and row.get("baseline_chars") is not None]
    if not rows:
        return None
    return _Judged(
        prompts=[str(row["id"]) for row in rows],
        preferences=[float(row["preference"]) if row.get("valid", True) else math.nan for row in rows],
        own_length=[float(row["model_chars"]) for row in rows],
        baseline_length=[float(row["baseline_chars"]) for row in rows],
    )


def length_controlled(outputs: Outputs, calibration: Calibration = ()) -> Measurements:
    """AlpacaEval's length-controlled win rate in percent, difficulty fitted jointly over rows and seeds.

    Args:
        outputs: the table's runs; their judgements carry `model_chars` and `baseline_chars`.
        calibration: judged variants of the baseline: {id, variant, preference, model_chars, baseline_chars}.

    The value of a prompt is its preference less the length effect that the fitted model finds in it, so that
    a test over prompts compares what the win rates compare.
    """
    judged = {
        (name, seed): rows
        for name, by_seed in outputs.items()
        for seed, output in by_seed.items()
        if (rows := _alpaca_rows(output))
    }
    found: dict[str, dict[int, Measurement]] = {name: {} for name in outputs}
    if not judged:
        return found
    from rlhf_core.evaluation.alpaca_eval import fit_difficulty

    difficulty = fit_difficulty(
        [f"{name}@{seed}" for (name, seed), rows in judged.items() for _ in rows.prompts],
        [prompt for rows in judged.values() for prompt in rows.prompts],
        [value for rows in judged.values() for value in rows.preferences],
        [value for rows in judged.values() for value in rows.own_length],
        [value for rows in judged.values() for value in rows.baseline_length],
    )
    frame = _calibration_frame(calibration, difficulty)
    for (name, seed), rows in judged.items():
        found[name][seed] = _length_controlled_run(rows, difficulty, frame)
    return found


def _calibration_frame(rows: Calibration, difficulty: Mapping[Any, float]) -> Any:
    """Calibration rows of every variant on the judged instructions, as one frame; None without any."""
    import pandas as pd

    from rlhf_core.evaluation.alpaca_eval import make_calibration_rows

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


def _length_controlled_run(rows: _Judged, difficulty: Mapping[Any, float], calibration: Any) -> Measurement:
    from rlhf_core.evaluation.alpaca_eval import (
        FEATURES,
        length_controlled_win_rate,
        standardised_length_difference,
    )

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
    adjusted = np.array(rows.preferences) - 1 - effect
    prompts = {
        prompt: float(value) for prompt, value in zip(rows.prompts, adjusted, strict=True) if np.isfinite(value)
    }
    return Measurement(fit.lc_win_rate, prompts)


#: Metrics that need all rows of a table at once.
JOINT_METRICS: dict[str, JointMetric] = {"alpaca_lc": length_controlled}


def measurements(outputs: Outputs, metric: str, calibration: Calibration = ()) -> Measurements:
    """A metric of every row of a table, by seed."""
    joint = JOINT_METRICS.get(metric)
    return joint(outputs, calibration) if joint else recorded(outputs, metric)
