"""A metric of every run of a table.

Most metrics are read from a run's `metrics.json`. Length-controlled win rates are computed here, with difficulties of
instructions that no run of the table changes: a run's number is the same beside any other rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.report.length_controlled import Judged, calibration_of, length_controlled, standardised
from tasks.report.outputs import StageOutput

#: Seed -> value in the column's unit.
BySeed = Mapping[int, float]
#: Row name -> seed -> ...
Measurements = Mapping[str, BySeed]
Outputs = Mapping[str, Mapping[int, StageOutput]]


@dataclass(frozen=True)
class TableRuns:
    """The runs behind a table.

    Attributes:
        outputs: {row name: {seed: output}}.
        references: for each row the outputs of the SFT model that it starts from, by seed.
        calibration: judged variants of AlpacaEval's baseline.
    """

    outputs: Outputs
    references: Outputs
    calibration: Sequence[Mapping[str, Any]] = ()

    def reference(self, name: str, seed: int) -> StageOutput | None:
        return self.references.get(name, {}).get(seed)


def _true_rewards(answers: Sequence[Mapping[str, Any]], benchmark: str) -> dict[str, float]:
    return {
        str(row["id"]): float(row["true_reward"])
        for row in answers
        if row["benchmark"] == benchmark and row["true_reward"] is not None
    }


def _peak_answers(output: StageOutput) -> list[dict[str, Any]]:
    """Returns AlpacaEval answers of the weights of the best evaluation; none where they were not kept."""
    return output.rows("peak_generations.jsonl")


def _won(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    return {p: 0.5 + 0.5 * ((after[p] > before[p]) - (after[p] < before[p])) for p in after.keys() & before.keys()}


def recorded(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric as the runs recorded it; runs without it are left out."""
    return {
        name: {seed: output.metrics[metric] for seed, output in by_seed.items() if metric in output.metrics}
        for name, by_seed in runs.outputs.items()
    }


def _alpaca_rows(output: StageOutput) -> Judged:
    """Returns a run's AlpacaEval preferences with the lengths of both answers, in characters."""
    answers = {str(row["id"]): row for row in output.generations if row["benchmark"] == "alpaca"}
    rows = [row for row in output.judgements if row["benchmark"] == "alpaca" and str(row["id"]) in answers]
    return Judged(
        prompts=[str(row["id"]) for row in rows],
        preferences=[math.nan if row["preference"] is None or not row["valid"] else row["preference"] for row in rows],
        own_length=[answers[str(row["id"])]["n_chars"] for row in rows],
        baseline_length=[len(answers[str(row["id"])]["baseline"]) for row in rows],
    )


def _reference_rows(answers: Sequence[Mapping[str, Any]], reference: StageOutput) -> Judged:
    """True wins of answers over the SFT model's as preferences, with the lengths of both."""
    after, before = (_true_rewards(rows, "alpaca") for rows in (answers, reference.generations))
    wins = _won(after, before)
    own, other = (
        {str(row["id"]): float(row["n_chars"]) for row in rows if row["benchmark"] == "alpaca"}
        for rows in (answers, reference.generations)
    )
    prompts = sorted(wins)
    return Judged(prompts, [1 + wins[p] for p in prompts], [own[p] for p in prompts], [other[p] for p in prompts])


def alpaca_length_controlled(runs: TableRuns) -> Measurements:
    """Returns AlpacaEval's length-controlled win rate in percent; empty where no variants of the baseline were
    judged, from which the difficulties are."""
    if not runs.calibration:
        return {}
    calibration = calibration_of(runs.calibration)
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            judged = _alpaca_rows(output)
            rate = length_controlled(f"{name} at seed {seed}", judged, *calibration) if judged.prompts else None
            if rate is not None:
                found.setdefault(name, {})[seed] = rate
    return found


def reference_length_controlled(
    runs: TableRuns, answers: Callable[[StageOutput], list[dict[str, Any]]] = lambda output: output.generations
) -> Measurements:
    """Returns the length-controlled true win rate of a run's answers over the SFT model in percent.

    An instruction's difficulty is the true reward of the SFT model's answer, standardised: the same for all rows that
    start from the model in a world.
    """
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            reference = runs.reference(name, seed)
            if reference is None or reference.path == output.path:
                continue
            judged = _reference_rows(answers(output), reference)
            difficulty = standardised(_true_rewards(reference.generations, "alpaca"))
            rate = length_controlled(f"{name} at seed {seed}", judged, difficulty) if judged.prompts else None
            if rate is not None:
                found.setdefault(name, {})[seed] = rate
    return found


def reference_arena(runs: TableRuns) -> Measurements:
    """True win rate over the SFT model on Arena-Hard's prompts in percent, ties half."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            reference = runs.reference(name, seed)
            if reference is None:
                continue
            wins = _won(*(_true_rewards(side.generations, "arena") for side in (output, reference)))
            if wins:
                found.setdefault(name, {})[seed] = 100 * sum(wins.values()) / len(wins)
    return found


#: Win rates over the SFT model, by the benchmark that they are on.
OVER_SFT = {
    "win_rate_vs_sft": "alpaca",
    "peak_win_rate_vs_sft": "alpaca",
    "lc_win_rate_vs_sft": "alpaca",
    "peak_lc_win_rate_vs_sft": "alpaca",
    "ood_win_rate_vs_sft": "ood",
    "arena_win_rate_vs_sft": "arena",
}
#: Metrics that no run records: they need the SFT model's answers or the data set's calibration.
JOINT_METRICS: dict[str, Callable[[TableRuns], Measurements]] = {
    "alpaca_lc": alpaca_length_controlled,
    "lc_win_rate_vs_sft": reference_length_controlled,
    "peak_lc_win_rate_vs_sft": lambda runs: reference_length_controlled(runs, _peak_answers),
    "arena_win_rate_vs_sft": reference_arena,
}


def has_itself(metric: str) -> bool:
    """Returns whether the SFT model has a metric by definition; see `reference_itself`."""
    return metric in OVER_SFT or metric.startswith("peak_")


def reference_itself(runs: TableRuns, metric: str) -> Measurements:
    """Returns the SFT model's values by definition, such as 50 % wins against itself."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            reference = runs.reference(name, seed)
            if reference is None or reference.path != output.path:
                continue
            own = metric.removeprefix("peak_")
            if metric in OVER_SFT:
                found.setdefault(name, {})[seed] = 50.0
            elif own in output.metrics:
                found.setdefault(name, {})[seed] = output.metrics[own]
    return found


def best_win_rates(outputs: Mapping[int, StageOutput]) -> BySeed:
    """Returns the true win rate over the SFT model at a row's best evaluation, by seed; empty where none was measured.

    It is that of all test prompts where a run keeps its best weights, else the highest evaluation.
    """
    found: dict[int, float] = {}
    for seed, output in outputs.items():
        ends = [output.metrics[name] for name in ("win_rate_vs_sft", "peak_win_rate_vs_sft") if name in output.metrics]
        if "peak_win_rate_vs_sft" not in output.metrics:
            rows = output.rows("checkpoints.jsonl")
            ends += [float(row["win_rate_vs_sft"]) for row in rows if row.get("win_rate_vs_sft") is not None]
        if ends:
            found[seed] = max(ends)
    return found


def broken(outputs: Mapping[int, StageOutput]) -> bool:
    """Says whether a row is below the SFT model that it started from even at its best evaluation, in the mean over
    worlds."""
    best = best_win_rates(outputs)
    return bool(best) and sum(best.values()) / len(best) < 50


def measurements(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric of every row of a table, by seed."""
    joint = JOINT_METRICS.get(metric)
    found = joint(runs) if joint else recorded(runs, metric)
    return {**found, **reference_itself(runs, metric)} if has_itself(metric) else found
