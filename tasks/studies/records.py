"""Records of a study's worlds: small, committed, and all that verdicts are made from.

A record holds the metrics of every row of every cell, what training cost, digests of the data, of the SFT model and of
each result, and the commit. Weights stay where they are and may be deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.graph.items import Item, result_of
from tasks.params.studies import StudySpec
from tasks.params.yaml_files import write_whole
from tasks.studies.registration import RECORDS, Registration, check_record, record_file
from tasks.studies.training import curve_of, training_of
from tasks.studies.tree import WorldTree

#: What a record says of the machine that a stage ran on.
MACHINE = ("threads", "device", "host_cpu", "python", "versions")


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numbers rounded to seven digits; of those that are not finite, their names as texts."""
    return {k: float(f"{v:.7g}") if math.isfinite(v) else str(v) for k, v in values.items()}


def _measured(tree: Path, item: Item) -> dict[str, Any]:
    """Returns what one stage left: its metrics (or why it stopped), its digest and seconds."""
    result, record = tree / result_of(item), _json(tree / item.out / "record" / "record.json")
    found: dict[str, Any] = {"result": record["result_digest"], "seconds": record["seconds"]}
    if (result / "stopped.json").exists():
        return found | {"stopped": _json(result / "stopped.json")["reason"]}
    metrics = _json(result / "metrics.json") if (result / "metrics.json").exists() else {}
    return found | {"metrics": _finite(metrics)}


def trained(tree: Path, item: Item) -> dict[str, Any]:
    """Returns what a record says of a row's training: its size and its evaluations on the way."""
    curve = {} if (tree / result_of(item) / "stopped.json").exists() else curve_of(tree, item)
    points = [_finite(point) for point in curve.get("points", ())]
    return {"training": _finite(training_of(tree, item)), "curve": {**curve, "points": points} if curve else {}}


def record_of(world: WorldTree, own: Registration, *, pilot: bool) -> dict[str, Any]:
    """Returns the record of a world whose stages have all run."""
    cells: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    for cell in world.spec.cells:
        last = world.stages(cell)
        outs = {item.out for item in last.values()}
        rows = {}
        for row, item in last.items():
            rows[row] = _measured(world.tree, item) | trained(world.tree, item)
            machine = machine or _json(world.tree / item.out / "record" / "record.json")
        above = [item for item in world.items(cell) if item.out not in outs and item.module != "check"]
        made = {f"{item.module}/{item.name}": _measured(world.tree, item) for item in above}
        cells[cell] = {"rows": rows, "above": made}
    return {
        "study": own.study,
        "digest": own.digest,
        "commit": own.commit,
        "kind": "pilot" if pilot else "verdict",
        "world": world.number,
        "machine": {name: machine[name] for name in MACHINE},
        "cells": cells,
    }


def write_record(root: Path, record: Mapping[str, Any]) -> Path:
    """Writes a world's record, whole or not at all; returns its file relative to the root."""
    file = record_file(record["study"], record["world"], pilot=record["kind"] == "pilot")
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    write_whole(root / file, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return file


def read_record(file: Path) -> dict[str, Any]:
    """Returns one record as it is."""
    return _json(file)


def read_records(root: Path, own: Registration, spec: StudySpec) -> dict[int, dict[str, Any]]:
    """Returns the records of the study's worlds by index, of those that there are.

    Raises:
        DataError: a record of another version of the study, or one without a cell or row.
    """
    found = {}
    for index in range(spec.worlds):
        file = record_file(own.study, own.world(index))
        if (root / file).exists():
            record = _json(root / file)
            check_record(root, file, record, own)
            _check_whole(file, record, spec)
            found[index] = record
    return found


def _check_whole(file: Path, record: Mapping[str, Any], spec: StudySpec) -> None:
    for cell, levels in spec.cells.items():
        for row in spec.rows_of(levels):
            if row not in record["cells"].get(cell, {}).get("rows", {}):
                raise DataError(f"row '{row}' of cell '{cell}' is missing", file=file.as_posix(), field="cells")


def value_of(record: Mapping[str, Any], cell: str, row: str, metric: str) -> float:
    """Returns a row's metric in a cell of a world.

    Raises:
        DataError: the row stopped, or has no such metric, or one that is not finite.
    """
    found, where = record["cells"][cell]["rows"][row], f"world {record['world']}"
    file = record_file(record["study"], record["world"], pilot=record["kind"] == "pilot").as_posix()
    if "stopped" in found:
        raise DataError(f"{where}: row '{row}' of cell '{cell}' stopped: {found['stopped']}", file=file)
    value = found["metrics"].get(metric)
    if not isinstance(value, int | float) or not math.isfinite(value):
        said = "has no such metric" if value is None else f"is {value}"
        raise DataError(f"{where}: row '{row}' of cell '{cell}' {said}", file=file, field=metric)
    return float(value)


def unknown_records(root: Path, own: Registration, spec: StudySpec) -> list[Path]:
    """Returns files among a study's records that no world of it has."""
    known = {record_file(own.study, own.world(index)) for index in range(spec.worlds)}
    files = [path.relative_to(root) for path in sorted((root / RECORDS / own.study).glob("*.json"))]
    return [file for file in files if file not in known and not file.name.startswith("pilot-")]
