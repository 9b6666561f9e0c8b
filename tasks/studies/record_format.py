"""Format of a world's record: its fields with their types, and its reading."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.typed import Checked, typed

#: A number; one that is not finite is text.
Number = float | str
#: The full name of a commit: a branch would be another one later.
COMMIT = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
#: Of a whole number in a record.
MOST_DIGITS = 300


@dataclass(frozen=True)
class Environment(Checked):
    """The code, versions and processor that stages of a world ran with (`tasks.studies.provenance`)."""

    commit: str
    dirty: bool
    sources: str
    threads: int
    device: str
    host_cpu: str
    cpu_capability: str
    python: str
    versions: Mapping[str, str]


@dataclass(frozen=True)
class TrainingCurve(Checked):
    """Evaluations of a row while it trained, and how their answers were drawn."""

    temperature: float
    top_p: float
    points: tuple[Mapping[str, Number], ...]
    top_k: int = 0


@dataclass(frozen=True)
class StageRun(Checked):
    """One stage of a world.

    Args:
        seconds: that it took.
        result: digest of its result; None where numbers diverged.
        environment: place in the record's list; None without a result.
        metrics: of its result.
        stopped: why it stopped.
        diverged: which numbers were not finite, here or above.
        drawn: its result is another in every world.
    """

    seconds: float
    result: str | None
    environment: int | None
    metrics: Mapping[str, Number] = field(default_factory=dict)
    stopped: str | None = None
    diverged: str | None = None
    drawn: bool = False


@dataclass(frozen=True)
class RowRun(StageRun):
    """The last stage of a row.

    Args:
        training: its size and diagnostics.
        curve: evaluations on the way.
        scored_at: the step of the evaluation whose metrics a row has that diverged after it.
        origin: what it was trained from and measured on (`tasks.studies.origins`).
    """

    training: Mapping[str, Number] = field(default_factory=dict)
    curve: Mapping[str, Any] = field(default_factory=dict)
    scored_at: int | None = None
    origin: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.curve:
            typed(TrainingCurve, self.curve, "curve")


@dataclass(frozen=True)
class CellRuns(Checked):
    """The stages of one cell: rows by name, and the stages above them."""

    rows: Mapping[str, RowRun]
    above: Mapping[str, StageRun]


@dataclass(frozen=True)
class WorldRecord(Checked):
    """The record of a world.

    Args:
        study, digest, commit: the study's name, SHA-256 of its file, and the commit at which the world was finished.
        kind: pilot, or verdict for a registered world.
        world: the number from which everything in it is drawn.
        dirty: files of code and settings that no commit had; of pilots alone.
        settings: digest of the settings and versions of all stages (`tasks.studies.provenance`).
        machine: what the first row ran on.
        environments: each distinct one of the stages.
        cells: by name.
    """

    study: str
    digest: str
    commit: str
    kind: Literal["pilot", "verdict"]
    world: int
    dirty: tuple[str, ...]
    settings: str
    machine: Mapping[str, Any]
    environments: tuple[Environment, ...]
    cells: Mapping[str, CellRuns]

    def __post_init__(self) -> None:
        super().__post_init__()
        if not COMMIT.fullmatch(self.commit):
            raise RecipeError(f"commit is '{self.commit}'; it must be the 40 digits of a commit's name")
        if not isinstance(self.machine.get("threads"), int):
            raise RecipeError(f"machine.threads is {self.machine.get('threads')}; it must be a number")
        for name, cell in self.cells.items():
            for stage, run in (*cell.rows.items(), *cell.above.items()):
                if run.environment is not None and not 0 <= run.environment < len(self.environments):
                    raise RecipeError(f"cells.{name}.{stage}.environment is {run.environment}; there is no such one")


def _integer(text: str) -> int:
    """Returns a whole number that is finite as a float."""
    if len(text) > MOST_DIGITS:
        raise RecipeError(f"the number {text[:12]}... has {len(text)} digits; at most {MOST_DIGITS} are read")
    return int(text)


def read_record(root: Path, file: Path) -> dict[str, Any]:
    """Returns a record as it is.

    Args:
        root: the repository.
        file: relative to it.

    Raises:
        DataError: it cannot be read, or is not a record.
    """
    name, remedy = file.as_posix(), f"Restore it with `git checkout HEAD -- {file.as_posix()}`; it is never edited"
    try:
        record = json.loads((root / file).read_text(encoding="utf-8"), parse_int=_integer)
        typed(WorldRecord, record, "")
    except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"not valid JSON ({error})", file=name, remedy=remedy) from None
    except RecipeError as error:
        raise DataError(f"not a record: {str(error).removeprefix(': ')}", file=name, remedy=remedy) from None
    return dict(record)
