"""A metric of every run of a table.

Most metrics are read from a run's `metrics.json`. Length-controlled win rates are computed here. With true rewards or
calibration rows the difficulties of instructions depend on no run of the table, so that a run's number is the same
beside any other rows; a judge's over the SFT model are fitted over the paper's policies (`tasks.report.win_rates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

from rlhf_core.errors import DataError
from tasks.report.length_controlled_runs import Judged, calibration_of, length_controlled
from tasks.report.outputs import StageOutput
from tasks.report.row_games import other_row, over_row
from tasks.report.win_rates import (
    OVER_SFT,
    TableRuns,
    difficulties_of,
    knows_true_rewards,
    preferences,
    tally_over_sft,
)

#: Seed -> value in the column's unit.
BySeed = Mapping[int, float]
#: Row name -> seed -> ...
Measurements = Mapping[str, BySeed]


def recorded(runs: TableRuns, metric: str) -> Measurements:
    """Returns a metric as the runs recorded it; runs without it are left out."""
    return {
        name: {seed: output.metrics[metric] for seed, output in by_seed.items() if metric in output.metrics}
        for name, by_seed in runs.outputs.items()
    }


def _alpaca_rows(output: StageOutput) -> Judged:
    """Returns a run's AlpacaEval preferences with the lengths of both answers, in characters."""
    answers = {str(row["id"]): row for row in output.generations if row["benchmark"] == "alpaca"}
    rows = [
        row
        for row in output.judgements
        if row["benchmark"] == "alpaca" and str(row["id"]) in answers and "reference" not in row
    ]
    for name, answer in ((name, answers[str(row["id"])]) for row in rows for name in ("n_chars", "baseline")):
        if name not in answer:
            raise DataError(
                f"the answer to prompt {answer['id']} has no '{name}'",
                file=str(output.result / "generations.jsonl"),
                field=name,
                remedy="Run its stage again",
            )
    return Judged(
        prompts=[str(row["id"]) for row in rows],
        preferences=[math.nan if row["preference"] is None or not row["valid"] else row["preference"] for row in rows],
        own_length=[answers[str(row["id"])]["n_chars"] for row in rows],
        opponent_length=[len(answers[str(row["id"])]["baseline"]) for row in rows],
    )


def alpaca_length_controlled(runs: TableRuns) -> Measurements:
    """Returns AlpacaEval's length-controlled win rate in percent; empty where no variants of the baseline were
    judged, from which the difficulties are."""
    fitted = {seed: calibration_of(rows) for seed, rows in runs.calibrations.items() if rows}
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            judged = _alpaca_rows(output) if seed in fitted and "alpaca_lc" not in output.blank else None
            if judged is None or not judged.prompts:
                continue
            rate = length_controlled(f"{name} at seed {seed}", judged, *fitted[seed])
            if rate is not None:
                found.setdefault(name, {})[seed] = rate
    return found


def length_controlled_over_sft(runs: TableRuns, *, peak: bool = False) -> Measurements:
    """Returns the length-controlled win rate of a run's answers over the SFT model in percent; see `win_rates`."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            sft = runs.sft_output(name, seed)
            if sft is None or sft.path == output.path:
                continue
            judged = preferences(output, sft, "alpaca", peak=peak)
            if not any(math.isfinite(value) for value in judged.preferences):
                continue
            rate = "peak_win_rate_vs_sft" if peak else "win_rate_vs_sft"
            difficulty, _ = difficulties_of(runs, output, sft, rate)
            controlled = length_controlled(f"{name} at seed {seed}", judged, difficulty)
            if controlled is not None:
                found.setdefault(name, {})[seed] = controlled
    return found


def arena_over_sft(runs: TableRuns) -> Measurements:
    """Returns the win rate over the SFT model on Arena-Hard's prompts in percent, ties half."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            sft = runs.sft_output(name, seed)
            tally = None if sft is None else tally_over_sft(output, sft, "arena")
            if tally is not None and tally.scores:
                found.setdefault(name, {})[seed] = 100 * sum(tally.scores.values()) / len(tally.scores)
    return found


#: Metrics that no run records: they need the SFT model's answers or the data set's calibration.
JOINT_METRICS: dict[str, Callable[[TableRuns], Measurements]] = {
    "alpaca_lc": alpaca_length_controlled,
    "lc_win_rate_vs_sft": length_controlled_over_sft,
    "peak_lc_win_rate_vs_sft": partial(length_controlled_over_sft, peak=True),
    "arena_win_rate_vs_sft": arena_over_sft,
}


def has_itself(metric: str) -> bool:
    """Returns whether the SFT model has a metric by definition; see `sft_itself`."""
    return metric in OVER_SFT or metric.startswith("peak_")


def sft_itself(runs: TableRuns, metric: str) -> Measurements:
    """Returns the SFT model's values by definition, such as 50 % wins against itself."""
    found: dict[str, dict[int, float]] = {}
    for name, by_seed in runs.outputs.items():
        for seed, output in by_seed.items():
            sft = runs.sft_output(name, seed)
            if sft is None or sft.path != output.path:
                continue
            own = metric.removeprefix("peak_")
            if metric in OVER_SFT:
                found.setdefault(name, {})[seed] = 50.0
            elif own in output.metrics:
                found.setdefault(name, {})[seed] = output.metrics[own]
    return found


def best_win_rates(outputs: Mapping[int, StageOutput]) -> BySeed:
    """Returns the win rate over the SFT model at a row's best evaluation, by seed; empty where none was measured.

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
    """Returns a metric of every row of a table, by seed; judged numbers that are blank in a run are left out."""
    if other_row(metric) is not None:
        return over_row(runs, metric)
    joint = JOINT_METRICS.get(metric)
    found = joint(runs) if joint else recorded(runs, metric)
    if not has_itself(metric) or (metric in OVER_SFT and not _compared(runs, found)):
        return found
    return {**found, **sft_itself(runs, metric)}


def _compared(runs: TableRuns, found: Measurements) -> bool:
    """Returns whether win rates over the SFT model are measured, so that the SFT model's own 50 % means something.

    They are where a run has one, or the SFT model's answers have true rewards.
    """
    sft_outputs = [output for by_seed in runs.sft_outputs.values() for output in by_seed.values()]
    return any(found.values()) or any(map(knows_true_rewards, sft_outputs))
