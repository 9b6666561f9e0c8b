"""Records of tuning, reference/tuning/<study>.json: what every trial of every row gave, and what it cost.

A trial's run in a cell of a seed's world has its metric, its evaluations on the way, what training did and its
core-seconds, or why it diverged or stopped, or why its metric is blank. A run that is recorded is not run again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, hint
from tasks.graph.items import Item, result_of
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_json, read_object
from tasks.running.judged_numbers import blank_numbers
from tasks.studies.training import curve_of, training_of
from tasks.studies.tree import WorldTree
from tasks.studies.trials import Trial, TrialRows, TuningPlan

TUNING = Path("reference") / "tuning"
#: Key of a row whose trials were taken over from a study.
TAKEN_FROM = "taken_from"
#: Metrics that compare with the SFT model, which itself has this value.
OVER_SFT, EVEN = "win_rate_vs_sft", 50.0
Record = dict[str, Any]


def tuning_file(study: str) -> Path:
    """Returns where the record of a study's tuning is, relative to the root."""
    return TUNING / f"{study}.json"


def read_tuning(root: Path, study: str) -> Record | None:
    """Returns the record of a study's tuning; None where nothing was tried."""
    file = root / tuning_file(study)
    return read_object(file) if file.exists() else None


def write_tuning(root: Path, record: Record) -> Path:
    """Writes the record, whole or not at all; returns its file relative to the root."""
    file = tuning_file(record["study"])
    write_whole(root / file, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return file


def taken_over(root: Path, plan: TuningPlan, other: str) -> Record:
    """Returns the trials that another study has of rows of the plan's study, as its own.

    Raises:
        DataError: the study has trials of its own, the other one has none of its rows, or they are of another metric,
            or of other cells or points.
    """
    own, file = tuning_file(plan.study).as_posix(), tuning_file(other).as_posix()
    if (root / own).exists():
        raise DataError("the study has trials", file=own, remedy="Delete the file to take over another study's trials")
    known = read_tuning(root, other) or {"rows": {}}
    rows = {row: {**made, TAKEN_FROM: other} for row, made in known["rows"].items() if row in plan.optimisers}
    if not rows:
        tuned = sorted(tuning.stem for tuning in (root / TUNING).glob("*.json"))
        problem = f"study '{other}' has no trials of rows of '{plan.study}'{hint(other, tuned, more=3)}"
        raise DataError(problem, file=file, remedy="Name a study that was tuned with rows of the same names")
    record = {**known, "study": plan.study, "rows": rows}
    _check(file, record, plan)
    return record


def record_to_continue(root: Path, plan: TuningPlan, seeds: Sequence[int]) -> Record:
    """Returns the record that tuning continues: of the plan's trials, and of all seeds that it was ever called with.

    Raises:
        DataError: recorded trials are of another metric, or of rows, cells or points that the study no longer has.
    """
    known = read_tuning(root, plan.study) or {}
    if known:
        _check(tuning_file(plan.study).as_posix(), known, plan)
    rows: dict[str, Any] = {}
    for row, kind in plan.optimisers.items():
        new = _stated(plan, row, kind) | {"trials": []}
        rows[row] = known.get("rows", {}).get(row, new)
        made = rows[row]["trials"]
        made += [{"point": point, "runs": {}} for point in plan.points_of(row)[len(made) :]]
    seeds = sorted({*known.get("seeds", []), *seeds})
    return {"study": plan.study, "metric": plan.spec.metric, "seeds": seeds, "rows": rows}


def _check(file: str, known: Mapping[str, Any], plan: TuningPlan) -> None:
    """Refuses recorded trials that are not the plan's."""
    if known["metric"] != plan.spec.metric:
        remedy = "Restore it in the study, or delete the file to tune anew"
        raise DataError(
            f"is {known['metric']}, the study has {plan.spec.metric}", file=file, field="metric", remedy=remedy
        )
    for row, made in known.get("rows", {}).items():
        _check_row(file, row, made, plan)


def _stated(plan: TuningPlan, row: str, kind: str) -> dict[str, Any]:
    """Returns what a row's trials are of."""
    fixed, cells = [*plan.spec.fixed(row)], plan.cells_of(row)
    return {"kind": kind, "cells": cells, "fixed": fixed, "space": plan.space_of(row)}


def _check_row(file: str, row: str, made: Mapping[str, Any], plan: TuningPlan) -> None:
    """Refuses a recorded row whose trials are not those of the plan."""
    remedy = "Restore the study and params/tuning.yaml, or delete the row here to tune it anew"
    if row not in plan.optimisers:
        raise DataError("the study has no such row that trains a policy", file=file, field=f"rows.{row}", remedy=remedy)
    for name, value in _stated(plan, row, plan.optimisers[row]).items():
        if made.get(name) != value:
            problem = f"is {made.get(name)}, the study has {value}"
            raise DataError(problem, file=file, field=f"rows.{row}.{name}", remedy=remedy)
    for number, (trial, point) in enumerate(zip(made["trials"], plan.points_of(row), strict=False)):
        if trial["point"] != point:
            problem = f"trial {number} was of {trial['point']}, it is {point} now"
            raise DataError(problem, file=file, field=f"rows.{row}", remedy=remedy)


def trials_of(record: Mapping[str, Any] | None) -> int:
    """Returns how many trials each row has, finished or not."""
    return max((len(made["trials"]) for made in (record or {"rows": {}})["rows"].values()), default=0)


def pending(record: Record, seed: int, numbers: range) -> list[Trial]:
    """Returns the trials of some numbers that have no run with a seed, of every row."""
    rows = record["rows"].items()
    return [(row, n) for n in numbers for row, made in rows if str(seed) not in made["trials"][n]["runs"]]


def check_digests(record: Record, seed: int, digests: Mapping[tuple[Trial, str], str]) -> None:
    """Refuses rows that were changed, beside the tuned values, since their first trials.

    Args:
        record: of the tuning.
        seed: of the world.
        digests: of what trials are trained from now, by trial and cell.

    Raises:
        DataError: names the row.
    """
    for ((row, _), cell), digest in digests.items():
        for number, trial in enumerate(record["rows"][row]["trials"]):
            run = trial["runs"].get(str(seed), {}).get(cell)
            if run is not None and run["settings"] != digest:
                raise DataError(
                    f"trial {number} with seed {seed} in cell '{cell}' was of other settings of the row, its data or "
                    "what it is trained from",
                    file=tuning_file(record["study"]).as_posix(),
                    field=f"rows.{row}",
                    remedy="Restore the settings, or delete the row's trials here to tune it anew",
                )


def add_runs(
    record: Record,
    world: WorldTree,
    digests: Mapping[tuple[Trial, str], str],
    commit: str,
    failed: Mapping[str, str],
    diverged: Mapping[str, str],
    spent: Mapping[str, float],
) -> None:
    """Adds the runs of a world's trials to the record.

    Args:
        record: gets the runs of trials that have a result or a divergence in all their cells.
        world: of trials.
        digests: of what they were trained from.
        commit: of the code.
        failed: messages of failed or skipped stages by address.
        diverged: reasons of the failed or skipped stages that diverged, or read from one that did, by address.
        spent: core-seconds of failed stages by address.
    """
    assert isinstance(world.spec, TrialRows)
    found: dict[Trial, dict[str, Any]] = {}
    incomplete: set[Trial] = set()
    for cell, file in zip(world.spec.cells, world.pipelines, strict=True):
        for name, item in world.stages(cell).items():
            trial = world.spec.of[name]
            address = f"{file}:{item.stage}"
            made = {"commit": commit, "settings": digests[trial, cell]}
            if address not in failed:
                found.setdefault(trial, {})[cell] = made | _run(world.tree, item, record["metric"])
            elif address in diverged:
                found.setdefault(trial, {})[cell] = made | {
                    "diverged": diverged[address],
                    "core_seconds": spent.get(address, 0.0),
                }
            else:
                incomplete.add(trial)
    for (row, number), cells in found.items():
        if (row, number) not in incomplete:
            record["rows"][row]["trials"][number]["runs"][str(world.seed)] = cells


def _run(tree: Path, item: Item, metric: str) -> dict[str, Any]:
    """Returns what a finished run gave.

    Raises:
        DataError: its stage measures no such metric.
    """
    result, made = tree / result_of(item), read_json(tree / item.out / "record" / "record.json")
    cost = {"core_seconds": round(made["seconds"] * made["threads"], 1)}
    if (result / "stopped.json").exists():
        return cost | {"stopped": read_json(result / "stopped.json")["reason"]}
    metrics = read_json(result / "metrics.json")
    if metric not in metrics:
        raise DataError(f"{item.stage} has no such metric{hint(metric, sorted(metrics), more=3)}", field="metric")
    if (reason := blank_numbers(result).get(metric)) is not None:
        return cost | {"blank": reason}
    if not math.isfinite(metrics[metric]):
        return cost | {"diverged": f"{metric} is {metrics[metric]}"}
    points = curve_of(tree, item).get("points", [])
    curve = {str(point["step"]): round(point[metric], 4) for point in points if metric in point}
    training = {name: float(f"{value:.5g}") for name, value in training_of(tree, item).items() if math.isfinite(value)}
    if metric.endswith(OVER_SFT):
        sft = EVEN
    else:
        sft = read_json(tree / str(item.arguments["sft"]) / "metrics.json").get(metric)
    return cost | {"metric": round(metrics[metric], 4), "sft": sft, "curve": curve, "training": training}
