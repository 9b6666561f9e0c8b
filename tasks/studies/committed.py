"""Checks of a study's records against git: a record counts once it is committed, and stays as it was committed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.params.studies import FOLDER, StudySpec
from tasks.studies.git_history import blob_at, blob_of, changes, contents_at, is_ancestor
from tasks.studies.provenance import refuse_record_of_uncommitted_code
from tasks.studies.record_edits import check_last_points, check_unknown_settings
from tasks.studies.record_format import read_record
from tasks.studies.registration import RECORDS, Registration, record_file
from tasks.studies.row_places import check_cells, check_settings
from tasks.studies.start_log import LOG, VERDICT, parse_starts, started

Record = Mapping[str, Any]


@dataclass(frozen=True)
class WorldRecords:
    """Records of a study's worlds by index.

    Attributes:
        committed: those that are committed; only they count.
        uncommitted: those that are not committed yet.
        lost: commits at which worlds ran and that this history does not have, after a squash or rebase.
    """

    committed: dict[int, Record] = field(default_factory=dict)
    uncommitted: dict[int, Record] = field(default_factory=dict)
    lost: dict[str, None] = field(default_factory=dict)


def read_records(root: Path, own: Registration, spec: StudySpec) -> WorldRecords:
    """Returns the records of the study's worlds.

    Raises:
        DataError: a record that is not as its world left it, that is of another study, that was changed or removed
            after its commit, that was committed without its start, that lacks a cell or row, has one in the place of
            another, or disagrees with itself or with the other records.
    """
    found = WorldRecords()
    changed = changes(root, RECORDS.as_posix())
    for index in range(spec.worlds):
        file = record_file(own.study, own.world_seed(index))
        history = changed.get(file.as_posix(), [])
        if not (root / file).exists():
            if history:
                remedy = f"Restore it with `git checkout {history[-1][:10]} -- {file.as_posix()}`"
                raise DataError("the committed record was removed", file=file.as_posix(), remedy=remedy)
            continue
        record = read_record(root, file)
        found.lost.update(dict.fromkeys(check_record(root, file, record, own, own.world_seed(index))))
        _check_whole(file, record, spec)
        if history:
            _check_history(root, file, record, own, history)
        (found.committed if history else found.uncommitted)[index] = record
    every = [*found.committed.values(), *found.uncommitted.values()]
    _check_copies(root, own, every)
    by_file = {record_file(own.study, record["world"]): record for record in every}
    for file, one in by_file.items():
        check_cells(file, one)
        check_last_points(file, one)
    check_settings(by_file)
    check_unknown_settings(root, by_file)
    return found


def check_record(root: Path, file: Path, record: Record, own: Registration, number: int) -> list[str]:
    """Refuses a record that does not come from the registered study.

    Returns:
        the record's commits that this history does not have: they show no registration.

    Raises:
        DataError: names the field.
    """
    name, source = file.as_posix(), f"{FOLDER.as_posix()}/{own.study}.yaml"
    for field_, value in (("study", own.study), ("kind", VERDICT), ("world", number)):
        if record[field_] != value:
            problem = f"is {record[field_]}, but its place is that of {value}"
            raise DataError(problem, file=name, field=field_, remedy="A record is never edited, copied or renamed")
    if record["digest"] != own.digest:
        raise DataError(f"is of another version of {source}", file=name, field="digest")
    lost = []
    for commit in dict.fromkeys([record["commit"], *(one["commit"] for one in record["environments"])]):
        if not is_ancestor(root, commit, "HEAD"):
            lost.append(commit)
            continue
        if blob_at(root, commit, source) != own.blob:
            remedy = "A study is committed before its worlds run"
            raise DataError(f"commit {commit[:10]} does not have {source}", file=name, field="commit", remedy=remedy)
    refuse_record_of_uncommitted_code(name, record)
    return lost


def _check_whole(file: Path, record: Record, spec: StudySpec) -> None:
    for cell, levels in spec.cells.items():
        for row in spec.rows_of(levels):
            if row not in record["cells"].get(cell, {}).get("rows", {}):
                raise DataError(f"row '{row}' of cell '{cell}' is missing", file=file.as_posix(), field="cells")


def _check_history(root: Path, file: Path, record: Record, own: Registration, history: list[str]) -> None:
    """Refuses a record that was changed after the commit that added it, or that was added without its start.

    Args:
        root: the repository.
        file: of the record.
        record: its content.
        own: the study's registration.
        history: commits that changed the file, the latest first.
    """
    name, added = file.as_posix(), history[-1]
    if len(history) > 1:
        problem = f"was changed after commit {added[:10]}, which added it, by {', '.join(c[:10] for c in history[:-1])}"
        raise DataError(problem, file=name, remedy="A record is committed once; register a new study")
    if blob_of(root, name) != blob_at(root, added, name):
        remedy = f"Restore it with `git checkout {added[:10]} -- {name}`"
        raise DataError(f"differs from the record that commit {added[:10]} added", file=name, remedy=remedy)
    before_head, before_record = (is_ancestor(root, record["commit"], later) for later in ("HEAD", added))
    if before_head and not before_record:
        raise DataError(f"is not before commit {added[:10]}, which added the record", file=name, field="commit")
    log = parse_starts(contents_at(root, [added], LOG.as_posix()).get(added, ""))
    if not any(started(line, own, record["world"]) for line in log):
        problem = f"commit {added[:10]} added it, but {LOG.as_posix()} has no start of the world there"
        raise DataError(problem, file=name, remedy="A start is committed with the record or before it")


def _check_copies(root: Path, own: Registration, records: Collection[Record]) -> None:
    """Refuses a world with a drawn result that another world has, of this study or another one."""
    seen: dict[str, str] = {}
    for file, record in _others(root, own):
        seen |= dict.fromkeys((digest for _, digest in drawn_results(record)), file.as_posix())
    for record in records:
        name = record_file(own.study, record["world"]).as_posix()
        for what, digest in drawn_results(record):
            if digest in seen:
                problem = f"has the {what} of {seen[digest]}, digest {digest[:12]}; worlds are independent draws"
                raise DataError(problem, file=name, field="result", remedy="Remove the record that was copied")
        seen |= dict.fromkeys((digest for _, digest in drawn_results(record)), name)


def _others(root: Path, own: Registration) -> Iterator[tuple[Path, Record]]:
    for path in sorted((root / RECORDS).glob("*/*.json")):
        file = path.relative_to(root)
        if file.parent.name != own.study or file.name.startswith("pilot-"):
            try:
                yield file, read_record(root, file)
            except DataError:  # named where its own study is shown
                continue


def drawn_results(record: Record) -> Iterator[tuple[str, str]]:
    """Yields the stage or row and the digest of each result that no two worlds share."""
    for cell in record["cells"].values():
        runs = [(name, run) for name, run in cell["above"].items() if run.get("drawn")]
        runs += [(f"row '{name}'", run) for name, run in cell["rows"].items() if "stopped" not in run]
        yield from ((name, run["result"]) for name, run in runs if run["result"] is not None)


def unknown_records(root: Path, own: Registration, spec: StudySpec) -> list[Path]:
    """Returns files among a study's records that no world of it has."""
    known = {record_file(own.study, own.world_seed(index)) for index in range(spec.worlds)}
    files = [path.relative_to(root) for path in sorted((root / RECORDS / own.study).glob("*.json"))]
    return [file for file in files if file not in known and not file.name.startswith("pilot-")]
