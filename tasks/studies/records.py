"""Registration of studies by the commit of their file, and the records of their worlds.

A study is registered by the commit that introduced the present content of its file. The worlds' seeds are drawn from
the study's name and the file's digest: nobody chooses them, and a changed file has other worlds. A record,
reference/studies/<study>/<world>.json, is all that verdicts are made from: the metrics of every row of every cell, the
costs of training, digests of the results, commit and versions. It counts if the study's commit is an ancestor of the
record's (or the same): then the question was fixed before the world ran. Weights may be deleted.
"""

from __future__ import annotations

import hashlib
import json
import math
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from rlhf_core.errors import DataError, RecipeError
from tasks.params.studies import FOLDER, StudySpec, read_study
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import PROJECT
from tasks.running.commit import changed_since, commit_of, listed

RECORDS = Path("reference") / "studies"
#: Kinds of a record: of a pilot, or of a registered world, which counts.
PILOT, VERDICT = "pilot", "verdict"
#: Seeds of registered worlds: from the first number on, below the second.
FIRST_REGISTERED, END_REGISTERED = 10**6, 2**31 - 10**6
#: Seeds of tuning and pilots.
TUNING = range(100, 200)
#: Seeds of a row compared with itself: of its worlds, and, this much above them, of its second runs.
TWINS, TWIN_APART = range(200, 300), 50

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


@dataclass(frozen=True)
class Registration:
    """A study's file as git has it.

    Attributes:
        study: its name.
        digest: SHA-256 of the file.
        commit: that introduced the file's present content.
        twins: whether rows are compared with themselves.
    """

    study: str
    digest: str
    commit: str
    twins: bool = False

    def world_seed(self, index: int) -> int:
        """Returns the seed of the study's world of an index, from 0 on: everything in the world follows from it.

        A study of twins has seeds kept for twins.
        """
        if self.twins:
            return TWINS.start + index
        drawn = hashlib.sha256(f"{self.study} {self.digest} world {index}".encode()).digest()
        return FIRST_REGISTERED + int.from_bytes(drawn[:8], "big") % (END_REGISTERED - FIRST_REGISTERED)


def registration_of(root: Path, file: Path) -> Registration:
    """Returns the registration of a study.

    Raises:
        RecipeError: the file is not committed as it is.
    """
    inside = file.resolve().relative_to(root.resolve()).as_posix()
    commit = introduced_by(root, inside)
    if commit is None:
        raise RecipeError(
            f"{inside} is not committed as it is; a study is registered by a commit before it runs: "
            f"git add {inside} && git commit"
        )
    return Registration(file.stem, digest_of(file), commit, read_study(file).twins)


def digest_of(file: Path) -> str:
    """Returns SHA-256 of a study's file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def introduced_by(root: Path, file: str) -> str | None:
    """Returns the commit that introduced a file's present content; None where the file is not committed as it is."""
    if _git(root, "diff", "--quiet", "HEAD", "--", file).returncode:
        return None
    return _git(root, "log", "-1", "--format=%H", "--", file).stdout.strip() or None


def why_not_before(root: Path, earlier: str, later: str) -> str | None:
    """Returns why nothing shows that a commit came before a later one, in words; None where it did."""
    status = _git(root, "merge-base", "--is-ancestor", earlier, later).returncode
    if status <= 1:
        return None if status == 0 else f"commit {later[:10]} does not follow commit {earlier[:10]}"
    return (
        f"commit {later[:10]} is not in this clone; fetch the whole history with `git fetch --unshallow`, and never "
        "squash or rebase a study"
    )


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    call = ["git", "-C", str(root), *words]
    return subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def check_tuning_seed(seed: int) -> None:
    """Refuses a seed of a pilot or of tuning that is kept for worlds that count, or whose results were seen.

    Raises:
        RecipeError: names the seeds of tuning.
    """
    if seed not in TUNING:
        raise RecipeError(f"seed {seed}: tuning and pilots have seeds {TUNING.start} to {TUNING.stop - 1}")


def refuse_uncommitted_code(root: Path) -> None:
    """Refuses to run a registered world with code or settings that no commit has.

    Raises:
        RecipeError: names files that are not committed, or the other folder whose code would run.
    """
    if (root / "rlhf_core").is_dir() and root.resolve() != PROJECT:
        raise RecipeError(
            f"the code that runs is that of {PROJECT}, not of {root}, whose commit the record would name; run it by "
            f"`python -m tasks.command_line` in {root}"
        )
    files = changed_since(root, "HEAD", (FOLDER.as_posix(),))
    if root.resolve() != PROJECT and commit_of(PROJECT):
        files += [f"{PROJECT}/{name}" for name in changed_since(PROJECT, "HEAD")]
    if files:
        raise RecipeError(
            f"{listed(files)} differ from the commit; worlds of a study run from committed code and settings. "
            "Commit or undo the changes, or run a pilot"
        )


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
    """Returns a record.

    Args:
        root: the repository.
        file: relative to it.

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
    for path in sorted((root / RECORDS / own.study).glob("[0-9]*.json")):
        if path.stem not in map(str, numbers):
            notes.append(f"not counted: {path.relative_to(root).as_posix()} is not of a world of this study")
    return found, notes


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
