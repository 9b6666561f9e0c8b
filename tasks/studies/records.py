"""Records of a study's worlds, reference/studies/<study>/<world>.json: all that verdicts are made from.

A record has the metrics of every row of every cell, the costs of training, digests of the results, commit and
versions; weights may be deleted.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from rlhf_core.errors import DataError, RecipeError
from tasks.params.studies import StudySpec
from tasks.params.yaml_files import write_whole
from tasks.studies.registration import Registration, why_not_before

RECORDS = Path("reference") / "studies"
#: Kinds of a record: of a pilot, or of a registered world, which counts.
PILOT, VERDICT = "pilot", "verdict"

Record = Mapping[str, Any]
#: Records of a study's worlds by their seed, in the order of the worlds.
Records = Mapping[int, Record]


class WorldRecord(TypedDict):
    """The record of a world.

    A cell has its `rows` by name, and the stages `above` them. Of each it has wall `seconds`, the digest of its
    `result`, and `metrics`, or why it `stopped` or `diverged`; of a row also the size of its `training`, its
    evaluations on the way as a `curve`, the step it was `scored_at` if it diverged later, and as `origin` digests of
    its settings and of what it was trained from. A number that is not finite, or is blank, is text.
    """

    study: str
    digest: str
    commit: str
    kind: Literal["pilot", "verdict"]
    world: int
    machine: dict[str, Any]
    cells: dict[str, dict[str, dict[str, dict[str, Any]]]]


_FORMAT = TypeAdapter(with_config(ConfigDict(extra="ignore"))(WorldRecord))


def refuse_if_started(root: Path, study: str) -> None:
    """Refuses to tune a study that has records of worlds: its rows are settled.

    Raises:
        RecipeError: names a record.
    """
    for file in sorted((root / RECORDS / study).glob("[0-9]*.json")):
        where = file.relative_to(root).as_posix()
        raise RecipeError(
            f"study '{study}' has the record {where}; rows are tuned before. Tune a study of another name"
        )


def record_file(study: str, number: int, *, pilot: bool = False) -> Path:
    """Returns where the record of a world is, relative to the root."""
    return RECORDS / study / (f"pilot-{number}.json" if pilot else f"{number}.json")


def write_record(root: Path, record: Record) -> Path:
    """Writes a world's record, whole or not at all; returns its file relative to the root."""
    file = record_file(record["study"], record["world"], pilot=record["kind"] == PILOT)
    (root / file).parent.mkdir(parents=True, exist_ok=True)
    write_whole(root / file, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return file


def read_record(root: Path, file: Path) -> Record:
    """Returns the record of a file, which is relative to the root.

    Raises:
        DataError: it is not a record; names the first wrong field.
    """
    try:
        return _FORMAT.validate_json((root / file).read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        remedy = f"Restore it with `git checkout HEAD -- {file.as_posix()}`; it is never edited"
        place = ".".join(map(str, first["loc"])) or None
        raise DataError(f"not a record: {first['msg']}", file=file.as_posix(), field=place, remedy=remedy) from None


def read_records(root: Path, own: Registration, spec: StudySpec) -> tuple[dict[int, Record], list[str]]:
    """Returns the records of a study's worlds that count, by seed in the order of the worlds, and sentences on files
    that do not count.

    Raises:
        DataError: a record that cannot be read, or that counts and lacks a row.
    """
    found: dict[int, Record] = {}
    notes, numbers = [], [own.world_seed(index) for index in range(spec.worlds)]
    for number in numbers:
        if not (root / (file := record_file(own.study, number))).exists():
            continue
        record = read_record(root, file)
        if (why := _why_not_counted(root, own, number, record)) is not None:
            notes.append(f"not counted: {file.as_posix()}: {why}")
            continue
        for cell, row in ((cell, row) for cell, levels in spec.cells.items() for row in spec.rows_of(levels)):
            if row not in record["cells"].get(cell, {}).get("rows", {}):
                raise DataError(f"row '{row}' of cell '{cell}' is missing", file=file.as_posix(), field="cells")
        found[number] = record
    others = (path for path in (root / RECORDS / own.study).glob("[0-9]*.json") if path.stem not in map(str, numbers))
    return found, notes + [
        f"not counted: {path.relative_to(root).as_posix()} is not of a world of this study" for path in sorted(others)
    ]


def _why_not_counted(root: Path, own: Registration, number: int, record: Record) -> str | None:
    """Returns why a record in the place of a study's world does not count, in words; None where it counts."""
    for name, value in (("study", own.study), ("kind", VERDICT), ("world", number), ("digest", own.digest)):
        if record[name] != value:
            return f"{name} is {record[name]}, not {value}"
    why = why_not_before(root, own.commit, record["commit"])
    return None if why is None else f"{why}; the study is registered by {own.commit[:10]}"


def is_number(value: Any) -> bool:
    """Returns whether a value of a record is a finite number."""
    return isinstance(value, int | float) and math.isfinite(value)


def why_no_number(record: Record, cell: str, row: str, metric: str) -> str:
    """Returns why a row of a record has no finite number of a metric, with world and cell, in words."""
    run, where = record["cells"][cell]["rows"][row], f"world {record['world']}: row '{row}' of cell '{cell}'"
    value = run.get("metrics", {}).get(metric)
    if "stopped" in run:
        return f"{where} stopped: {run['stopped']}"
    if value is None and "diverged" in run:
        return f"{where} diverged before an evaluation of {metric}: {run['diverged']}"
    return f"{where} has no {metric}" if value is None else f"{where}: {metric} is {value}"
