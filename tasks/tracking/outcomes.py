"""Outcomes of the stages, one per row and seed, which tracking mirrors."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from tasks.graph import dvc_files as graph
from tasks.graph.items import SHARED
from tasks.graph.results import stopped
from tasks.graph.rows import ROW_STAGES
from tasks.params.settings import DEFAULT_SCALE
from tasks.running.artifacts import digest, read_object
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.tracking.parameters import DeclaredStages, parameters

#: Kinds of stages whose results are runs.
TRACKED = (*ROW_STAGES, "reward_model")


@dataclass(frozen=True)
class TrackedStage:
    """A stage whose result is a run.

    Attributes:
        address: DVC's name of it.
        kind: the module that it runs.
        name, seed: of its row or reward model.
        out: its output directory.
        key: the place of its result below `results/`, by which its run is known.
        params: its settings.
    """

    address: str
    kind: str
    name: str
    seed: int
    out: Path
    key: str
    params: Mapping[str, str]


@dataclass(frozen=True)
class RowOutcome:
    """A result, or a failure, as its stage left it."""

    stage: TrackedStage
    digest: str
    record: Mapping[str, Any] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None

    @property
    def out(self) -> Path:
        return self.stage.out

    @property
    def metrics(self) -> dict[str, float]:
        return {} if self.failure else numbers(read_object(self.out / "result" / "metrics.json"))


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Returns the finite numbers of a mapping; MLflow takes nothing else as a metric."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }


def tables_of_rows(paper: str) -> dict[str, list[str]]:
    """Returns tables that print each row of a paper, by row name; none of rows that belong to no published paper."""
    tables: dict[str, list[str]] = {}
    for table in printed_tables.paper(paper).tables if paper in printed_tables.PAPERS else ():
        for row in mapped_rows(table):
            if row.recipe is not None and table.id not in tables.setdefault(row.recipe.name, []):
                tables[row.recipe.name].append(table.id)
    return tables


def outcomes(root: Path, paper: str, scale: str) -> list[RowOutcome]:
    """Returns every tracked stage of the paper that has a result or a failure, in the order of the graph."""
    declared = DeclaredStages(root, scale)
    files = [Path("pipelines", scale, name, "dvc.yaml") for name in (SHARED, paper)]
    if scale == DEFAULT_SCALE:
        files.insert(0, Path("dvc.yaml"))
    found = []
    for file in (file for file in files if (root / file).exists()):
        prefix = "" if file == Path("dvc.yaml") else f"{file.as_posix()}:"
        for name, stage in declared.stages_in(file).items():
            if stage["meta"]["module"] in TRACKED and stage["meta"]["owner"] in (SHARED, paper):
                found.append(outcome_of(root, _tracked(root, f"{prefix}{name}", declared)))
    return [outcome for outcome in found if outcome is not None]


def tracked_stage(root: Path, address: str) -> TrackedStage:
    """Returns a tracked stage by its address."""
    file = Path(address.rpartition(":")[0] or "dvc.yaml")
    scale = file.parts[1] if len(file.parts) > 1 else DEFAULT_SCALE
    return _tracked(root, address, DeclaredStages(root, scale))


def _tracked(root: Path, address: str, declared: DeclaredStages) -> TrackedStage:
    file, _, name = address.rpartition(":")
    stage = declared.stages_in(Path(file or "dvc.yaml"))[name]
    out, meta = Path(stage["outs"][0]).parent, stage["meta"]
    key = out.relative_to("results").as_posix()
    params = parameters(root, stage, declared)
    return TrackedStage(address, meta["module"], meta["name"], meta["seed"], root / out, key, params)


def outcome_of(root: Path, stage: TrackedStage) -> RowOutcome | None:
    """Returns the result of a stage, or its failure; None where it has neither."""
    failure_file = root / ".work" / "failures" / f"{graph.file_name(stage.address)}.json"
    record_file = stage.out / "record" / "record.json"
    record = read_object(record_file) if record_file.exists() else {}
    result = stage.out / "result"
    if exists_or_raise_if_lost(result / "metrics.json"):
        return RowOutcome(stage, record.get("result_digest") or digest(result), record)
    if (reason := stopped(result)) is not None:
        failure = {"stage": stage.address, "message": f"stopped: {reason}"}
        return RowOutcome(stage, digest(result), record, failure)
    if failure_file.exists():
        mark = hashlib.sha256(failure_file.read_bytes()).hexdigest()
        return RowOutcome(stage, f"failed-{mark}", failure=read_object(failure_file))
    return None
