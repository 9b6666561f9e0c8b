"""Outcomes of the stages, one per row and seed, with their settings as parameters: what tracking mirrors."""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from rlhf_core.published import printed_tables
from rlhf_core.published.row_map import mapped_rows
from rlhf_core.recipe import Recipe
from tasks.graph import dvc_files as graph
from tasks.graph.items import SHARED
from tasks.graph.results import stopped
from tasks.graph.rows import ROW_STAGES
from tasks.graph.typed_settings import type_of
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.scales import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping
from tasks.running.artifacts import digest, read_object, stage_record
from tasks.running.result_digests import exists_or_raise_if_lost

#: Kinds of stages whose results are runs.
TRACKED = (*ROW_STAGES, "reward_model")
#: Arguments with the settings of a stage itself; others have their name before them.
OWN = ("row", "spec")


@dataclass(frozen=True)
class TrackedStage:
    """A stage whose result is a run.

    Attributes:
        address, kind: DVC's name of it, and the module that it runs.
        name, seed: of its row or reward model.
        out, key: its output directory, and its place below `results/`, by which its run is known.
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
    def metrics(self) -> dict[str, float]:
        return {} if self.failure else numbers(read_object(self.stage.out / "result" / "metrics.json"))


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
    files = [f"pipelines/{scale}/{name}/dvc.yaml" for name in (SHARED, paper)]
    if scale == DEFAULT_SCALE:
        files.insert(0, "dvc.yaml")
    found = []
    for file in (file for file in files if (root / file).exists()):
        for name, stage in read_mapping(root / file)["stages"].items():
            if stage["meta"]["module"] in TRACKED and stage["meta"]["owner"] in (SHARED, paper):
                address = name if file == "dvc.yaml" else f"{file}:{name}"
                found.append(outcome_of(root, _tracked(root, address, stage)))
    return [outcome for outcome in found if outcome is not None]


def tracked_stage(root: Path, address: str) -> TrackedStage:
    """Returns a tracked stage by its address."""
    file, _, name = address.rpartition(":")
    return _tracked(root, address, read_mapping(root / (file or "dvc.yaml"))["stages"][name])


def _tracked(root: Path, address: str, stage: Mapping[str, Any]) -> TrackedStage:
    out, meta = Path(stage["outs"][0]).parent, stage["meta"]
    key = out.relative_to("results").as_posix()
    return TrackedStage(address, meta["module"], meta["name"], meta["seed"], root / out, key, parameters(root, stage))


def outcome_of(root: Path, stage: TrackedStage) -> RowOutcome | None:
    """Returns the result of a stage, or its failure; None where it has neither."""
    failure_file = root / ".work" / "failures" / f"{graph.file_name(stage.address)}.json"
    record, result = stage_record(stage.out), stage.out / "result"
    if exists_or_raise_if_lost(result / "metrics.json"):
        return RowOutcome(stage, record.get("result_digest") or digest(result), record)
    if (reason := stopped(result)) is not None:
        failure = {"stage": stage.address, "message": f"stopped: {reason}"}
        return RowOutcome(stage, digest(result), record, failure)
    if failure_file.exists():
        mark = hashlib.sha256(failure_file.read_bytes()).hexdigest()
        return RowOutcome(stage, f"failed-{mark}", failure=read_object(failure_file))
    return None


def parameters(root: Path, stage: Mapping[str, Any]) -> dict[str, str]:
    """Returns the settings of a stage as parameters of its run.

    Those of its row or spec have their own names, those of its other arguments the argument's before them
    (`scale.checkpoint_prompts`). All are typed, defaults included, but for a row, which is as its page states it;
    `optimiser` is whole, from row, scale and defaults.

    Args:
        root: the repository.
        stage: as dvc.yaml declares it.
    """
    words, found, typed = shlex.split(str(stage["cmd"]), comments=True), dict[str, str](), dict[str, Any]()
    for name, value in itertools.pairwise(words):
        argument = name.removeprefix("--")
        if name.startswith("--") and Address(value).key is not None:
            stated = read_settings(Address(value).under(root))
            typed[argument] = type_of(value)(stated, value)
            found |= flatten(stated if argument == "row" else typed[argument], "" if argument in OWN else argument)
    row, scale = typed.get("row"), typed.get("scale")
    if isinstance(row, Recipe) and isinstance(scale, PolicyScale) and row.kind == "reward":
        found |= flatten(reward_training(row, scale, str(stage["meta"]["name"])))
    return found


def _plain(value: Any) -> Any:
    """Returns settings as mappings, lists and values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def flatten(settings: Any, prefix: str = "") -> dict[str, str]:
    """Returns nested settings as `a.b.c` -> text."""
    value = _plain(settings)
    if isinstance(value, dict):
        parts = (flatten(each, f"{prefix}.{key}" if prefix else key) for key, each in value.items())
        return {name: text for part in parts for name, text in part.items()}
    return {prefix: json.dumps(value, default=str) if isinstance(value, list) else str(value)}
