"""Records of a study's worlds: small, committed, and all that verdicts are made from.

A record holds the metrics of every row of every cell, what training cost, digests of the data, of the SFT model and of
each result, and the code and versions of every stage. Weights stay where they are and may be deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.graph.items import Item, result_of
from tasks.params.pages import read_settings
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_object
from tasks.running.judged_numbers import blank_numbers
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.studies.divergence import Divergence, last_evaluation
from tasks.studies.origins import origins_of
from tasks.studies.provenance import environment_of, settings_digest
from tasks.studies.registration import Registration, record_file
from tasks.studies.right_selection import right_selection
from tasks.studies.start_log import PILOT, VERDICT
from tasks.studies.training import curve_of, training_of
from tasks.studies.tree import WorldTree

#: The largest number that a metric can be: its square is still finite.
LARGEST = 1e100
#: Fields of a record on the machine that its first row ran on.
MACHINE = ("threads", "device", "host_cpu", "python", "versions")


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numbers rounded to seven digits; of those that are not finite, their names as texts."""
    return {k: float(f"{v:.7g}") if math.isfinite(v) else str(v) for k, v in values.items()}


def _stage_record(tree: Path, item: Item) -> dict[str, Any]:
    return read_object(tree / item.out / "record" / "record.json")


def _measured(tree: Path, item: Item, environments: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what one stage left: its metrics (or why it stopped), its digest, seconds and environment."""
    result, record = tree / result_of(item), _stage_record(tree, item)
    found: dict[str, Any] = {"result": record["result_digest"], "seconds": record["seconds"]}
    found["environment"] = environment_of(record, environments)
    if (result / "stopped.json").exists():
        return found | {"stopped": read_object(result / "stopped.json")["reason"]}
    metrics = read_object(result / "metrics.json") if exists_or_raise_if_lost(result / "metrics.json") else {}
    if item.module == "selection":
        metrics |= right_selection(result, tree / str(item.arguments["data"]))
    blank = {name: f"blank: {reason}" for name, reason in blank_numbers(result).items() if name in metrics}
    return found | {"metrics": _finite(metrics) | blank}


def _without_result(failure: Divergence) -> dict[str, Any]:
    """Returns what a record says of a stage whose numbers diverged."""
    return {"result": None, "environment": None, "seconds": failure.seconds, "diverged": failure.reason}


def _diverged_row(tree: Path, item: Item, failure: Divergence) -> dict[str, Any]:
    """Returns what a record says of a row that diverged: the metrics of its last evaluation, if it had one."""
    found = _without_result(failure) | {"metrics": {}, "training": {}, "curve": {}}
    last = last_evaluation(tree / item.out)
    if last is None:
        return found
    scored = {name: value for name, value in last.items() if name != "step"}
    return found | {"metrics": _finite(scored), "scored_at": int(last["step"])}


def trained(tree: Path, item: Item) -> dict[str, Any]:
    """Returns what a record says of a row's training: its size and its evaluations on the way."""
    curve = {} if (tree / result_of(item) / "stopped.json").exists() else curve_of(tree, item)
    points = [_finite(point) for point in curve.get("points", ())]
    return {"training": _finite(training_of(tree, item)), "curve": {**curve, "points": points} if curve else {}}


def _drawn(tree: Path, item: Item) -> bool:
    """Returns whether a stage's result is another in every world: generated data, and the model trained on it."""
    settings = [read_settings(address.under(tree)) for address in item.addresses[:1]]
    if item.module == "prepare":
        return any("seed" in one for one in settings)
    return item.module == "sft" and any(one.get("source") is None or one.get("training") for one in settings)


def world_record(
    world: WorldTree,
    own: Registration,
    *,
    pilot: bool,
    diverged: Mapping[str, Divergence] | None = None,
    uncommitted: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns the record of a world whose stages have all run.

    Args:
        world: the world.
        own: the study's registration.
        pilot: its seed is of tuning.
        diverged: stages without a result by address, since numbers diverged in them or above.
        uncommitted: files of code and settings that no commit has as they are.
    """
    cells: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    environments: list[dict[str, Any]] = []
    for cell, file in zip(world.spec.cells, world.pipelines, strict=True):
        last = world.stages(cell)
        outs, failures = {item.out for item in last.values()}, diverged or {}
        rows, origins = {}, origins_of(world, cell)
        for row, item in last.items():
            failure = failures.get(f"{file}:{item.stage}")
            if failure is not None:
                rows[row] = _diverged_row(world.tree, item, failure) | {"origin": origins[row]}
                continue
            made = _measured(world.tree, item, environments) | trained(world.tree, item)
            rows[row] = made | {"origin": origins[row]}
            machine = machine or _stage_record(world.tree, item)
        above = {}
        for item in world.items(cell):
            if item.out not in outs and item.module != "check":
                failure = failures.get(f"{file}:{item.stage}")
                found = _without_result(failure) if failure else _measured(world.tree, item, environments)
                above[f"{item.module}/{item.name}"] = found | {"drawn": _drawn(world.tree, item)}
                machine = machine or ({} if failure else _stage_record(world.tree, item))
        cells[cell] = {"rows": rows, "above": above}
    return {
        "study": own.study,
        "digest": own.digest,
        "commit": own.commit,
        "kind": PILOT if pilot else VERDICT,
        "world": world.seed,
        "dirty": list(uncommitted),
        "settings": settings_digest(world),
        "machine": {name: machine[name] for name in MACHINE},
        "environments": environments,
        "cells": cells,
    }


def write_record(root: Path, record: Mapping[str, Any]) -> Path:
    """Writes a world's record, whole or not at all; returns its file relative to the root."""
    file = record_file(record["study"], record["world"], pilot=record["kind"] == PILOT)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    write_whole(root / file, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return file


def value_of(record: Mapping[str, Any], cell: str, row: str, metric: str) -> float:
    """Returns a row's metric in a cell of a world; of a row that diverged, that of its last evaluation.

    Raises:
        DataError: the row stopped, diverged before an evaluation of the metric, or has no such metric, or one that is
            not finite.
    """
    found, where = record["cells"][cell]["rows"][row], f"world {record['world']}"
    file = record_file(record["study"], record["world"], pilot=record["kind"] == PILOT).as_posix()
    if "stopped" in found:
        raise DataError(f"{where}: row '{row}' of cell '{cell}' stopped: {found['stopped']}", file=file)
    value = found["metrics"].get(metric)
    if value is None and "diverged" in found:
        problem = f"diverged before an evaluation of {metric}: {found['diverged']}"
        raise DataError(f"{where}: row '{row}' of cell '{cell}' {problem}", file=file)
    if (said := number_problem(metric, value)) is not None:
        said = "has no such metric" if value is None else said
        raise DataError(f"{where}: row '{row}' of cell '{cell}' {said}", file=file, field=metric)
    return float(value)


def number_problem(metric: str, value: Any) -> str | None:
    """Returns why a value is not a measurement of a metric, None where it can be one."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return f"is {value}"
    if "win_rate" in metric and not 0 <= value <= 100:
        return f"is {value:g}, not a rate between 0 and 100"
    return f"is {value:g}, above {LARGEST:g}" if abs(value) > LARGEST else None
