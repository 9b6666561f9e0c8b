"""Outcomes of the stages, one per row and seed, which tracking mirrors."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph import dvc_files as graph
from tasks.graph.items import SHARED
from tasks.graph.names import made_tables
from tasks.graph.rows import ROW_STAGES
from tasks.graph.stopping import stopped
from tasks.params.pages import Address, read_settings
from tasks.params.scales import STAGES, scale_entries
from tasks.params.settings import ROOT_SCALE
from tasks.params.yaml_files import read_mapping
from tasks.running.artifacts import digest, read_json


@dataclass(frozen=True)
class RowOutcome:
    """One row x seed as its stage left it."""

    row: str
    seed: int
    stage: str
    out: Path
    digest: str
    params: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None

    @property
    def metrics(self) -> dict[str, float]:
        return {} if self.failure else numbers(read_json(self.out / "result" / "metrics.json"))


@dataclass(frozen=True)
class TableMetrics:
    """Metrics of one table that only the tables stage knows.

    Attributes:
        means: '<row>/<metric>' -> mean over seeds.
        runs: (row, seed) -> metrics that need all rows of the table, such as the length-controlled win rate.
        read: result folder -> its digest when the tables stage read it.
    """

    means: Mapping[str, float] = field(default_factory=dict)
    runs: Mapping[tuple[str, int], Mapping[str, float]] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)

    def of(self, outcome: RowOutcome, root: Path) -> Mapping[str, float]:
        """Returns the run's own metrics of the table; empty when the table was made from another result of it."""
        result = (outcome.out / "result").relative_to(root).as_posix()
        return self.runs.get((outcome.row, outcome.seed), {}) if self.read.get(result) == outcome.digest else {}


def table_metrics(root: Path, paper: str, scale: str, table: str) -> TableMetrics:
    """Returns one table's metrics from the newest tables (`made_tables`); empty without any."""
    anchor = f"{table.lower().replace(' ', '-')}/"
    result = made_tables(root / "results" / scale, paper)
    if result is None:
        return TableMetrics()
    means: dict[str, float] = {}
    runs: dict[tuple[str, int], dict[str, float]] = {}
    for key, value in numbers(read_json(result / "metrics.json")).items():
        parts = key.removeprefix(anchor).split("/") if key.startswith(anchor) else []
        if len(parts) > 2 and parts[1].isdigit():  # row/seed/metric; a mean's metric may have a slash, too
            runs.setdefault((parts[0], int(parts[1])), {})["/".join(parts[2:])] = value
        elif parts:
            means["/".join(parts)] = value
    record = result.parent / "record" / "record.json"
    return TableMetrics(means, runs, read_json(record)["inputs"] if record.exists() else {})


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of a mapping; MLflow takes nothing else as a metric."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def flatten(values: Any, prefix: str = "") -> dict[str, str]:
    """Returns the nested settings as `a.b.c` -> text."""
    if isinstance(values, Mapping):
        parts = (flatten(value, f"{prefix}.{key}" if prefix else str(key)) for key, value in values.items())
        return {name: value for part in parts for name, value in part.items()}
    return {prefix: json.dumps(values) if isinstance(values, list) else str(values)}


def tables_of_rows(paper: str) -> dict[str, list[str]]:
    """Returns tables that print each row of a paper, by row name; none of rows that belong to no published paper."""
    tables: dict[str, list[str]] = {}
    for table in printed_tables.paper(paper).tables if paper in printed_tables.PAPERS else ():
        for row in mapped_rows(table):
            if row.recipe is not None and table.id not in tables.setdefault(row.recipe.name, []):
                tables[row.recipe.name].append(table.id)
    return tables


def _settings(root: Path, scale: str, stage: Mapping[str, Any]) -> dict[str, str]:
    """Returns parameters of a run: its row, its backbone and the scale's settings."""
    params: dict[str, str] = {}
    given = _arguments(stage)
    found = {"": given.get("row"), "backbone_spec": given.get("spec")}
    found |= {"scale.policy": given.get("scale"), "scale.evaluation": given.get("evaluation")}
    of_scale = scale_entries(root, scale, STAGES)
    found |= {f"scale.{name}": of_scale.get(name) for name in ("reward_model", "normaliser")}
    for prefix, address in found.items():
        if address is not None:
            params |= flatten(read_settings(address.under(root)), prefix)
    return params


def _arguments(stage: Mapping[str, Any]) -> dict[str, Address]:
    """Returns the entries of pages on a stage's command line, by the names of their arguments."""
    words = str(stage["cmd"]).split()
    pairs = pairwise(words)
    return {name.removeprefix("--"): Address(value) for name, value in pairs if name.startswith("--")}


def outcomes(root: Path, paper: str, scale: str, modules: tuple[str, ...] = ROW_STAGES) -> list[RowOutcome]:
    """Returns every row x seed of the paper that has a result or a failure, in the order of the graph.

    Of `modules` ('reward_model',), every reward model x seed.
    """
    folders = [root / "pipelines" / scale / name for name in (SHARED, paper)]
    if scale == ROOT_SCALE:
        folders.insert(0, root)
    found = []
    for folder in folders:
        if not (folder / "dvc.yaml").exists():
            continue
        prefix = "" if folder == root else f"{(folder / 'dvc.yaml').relative_to(root).as_posix()}:"
        for name, stage in read_mapping(folder / "dvc.yaml")["stages"].items():
            if stage["meta"]["module"] in modules and stage["meta"]["owner"] in (SHARED, paper):
                outcome = _outcome(root, scale, f"{prefix}{name}", stage)
                if outcome is not None:
                    found.append(outcome)
    return found


def _outcome(root: Path, scale: str, stage: str, declared: Mapping[str, Any]) -> RowOutcome | None:
    out = root / Path(declared["outs"][0]).parent
    row, seed = declared["meta"]["name"], declared["meta"]["seed"]
    failure_file = root / ".work" / "failures" / f"{graph.file_name(stage)}.json"
    params = _settings(root, scale, declared)
    record_file = out / "record" / "record.json"
    record = read_json(record_file) if record_file.exists() else {}
    if (out / "result" / "metrics.json").exists():
        result = record.get("result_digest") or digest(out / "result")
        return RowOutcome(row, seed, stage, out, result, params, record)
    if (reason := stopped(out / "result")) is not None:
        result, failure = digest(out / "result"), {"stage": stage, "message": f"stopped: {reason}"}
        return RowOutcome(row, seed, stage, out, result, params, record, failure)
    if failure_file.exists():
        failure = read_json(failure_file)
        mark = hashlib.sha256(failure_file.read_bytes()).hexdigest()
        return RowOutcome(row, seed, stage, out, f"failed-{mark}", params, failure=failure)
    return None
