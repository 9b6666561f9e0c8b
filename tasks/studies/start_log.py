"""The log of every start of a study's worlds, `reference/studies/log.jsonl`, which is only ever added to.

A line names the study, the digest of its file, the worlds that are started, the commit and a digest of the code. A
world's record counts only if its start was committed before it or with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.params.studies import FOLDER
from tasks.running.commit import code_of
from tasks.running.exclusive import in_turn
from tasks.studies.git_history import changes, contents_at, git, parents_of
from tasks.studies.registration import RECORDS, Registration, digest_of

LOG = RECORDS / "log.jsonl"
#: Kinds of a start, as the log and records have them: of a pilot, or of a registered world, which counts for a verdict.
PILOT, VERDICT = "pilot", "verdict"
REMEDY = f"Restore it with `git checkout HEAD -- {LOG.as_posix()}`; lines are only added"
#: Types of the fields of a line.
FIELDS = {"time": str, "kind": str, "study": str, "digest": str, "blob": str, "commit": str, "worlds": list}


def parse_starts(text: str) -> list[dict[str, Any]]:
    """Returns the lines of a log.

    Raises:
        DataError: a line that is not a start.
    """
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            start = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"not valid JSON ({error})", file=LOG.as_posix(), row=number, remedy=REMEDY) from None
        for field, kind in FIELDS.items():
            if not isinstance(start, dict) or not isinstance(start.get(field), kind):
                problem = "the start of a world has no such field or another type of it"
                raise DataError(problem, file=LOG.as_posix(), row=number, field=field, remedy=REMEDY)
        error_at = partial(DataError, file=LOG.as_posix(), row=number, remedy=REMEDY)
        if not start["study"].isprintable():
            raise error_at(f"{start['study']!r:.60} is not the name of a study", field="study")
        if wrong := [world for world in start["worlds"] if not isinstance(world, int) or isinstance(world, bool)]:
            raise error_at(f"{wrong[0]!r:.60} is not the number of a world", field="worlds")
        found.append(start)
    return found


def starts(root: Path) -> list[dict[str, Any]]:
    """Returns every start in the log, the first first.

    Raises:
        DataError: a line that is not a start.
    """
    return parse_starts(_text(root))


def _text(root: Path) -> str:
    try:
        return (root / LOG).read_text(encoding="utf-8") if (root / LOG).exists() else ""
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error})", file=LOG.as_posix(), remedy=REMEDY) from None


def refuse_edited_log(root: Path) -> None:
    """Refuses a log of which a committed line was changed or removed, in the working tree or by a commit.

    Raises:
        DataError: names the first such line.
    """
    here = _text(root).splitlines()
    for number, line in enumerate((git(root, "show", f"HEAD:{LOG.as_posix()}") or "").splitlines(), 1):
        if number > len(here) or here[number - 1] != line:
            raise DataError("a line was changed or removed", file=LOG.as_posix(), row=number, remedy=REMEDY)
    commits = changes(root, LOG.as_posix()).get(LOG.as_posix(), [])[::-1]
    for commit, content in contents_at(root, commits, LOG.as_posix()).items():
        for number, line in enumerate(content.splitlines(), 1):
            if line not in here:
                problem = f"line {number} of commit {commit[:10]} was changed or removed by a later commit: {line}"
                remedy = "Put the line back at its place; lines are only added"
                raise DataError(problem, file=LOG.as_posix(), remedy=remedy)
    _check_added_at_end(root, commits, here)


def _check_added_at_end(root: Path, commits: Sequence[str], here: Sequence[str]) -> None:
    """Refuses a line that is before lines which were there when it was committed: it would pass for an earlier
    start."""
    parents = {commit: parents_of(root, commit) for commit in commits}
    every = list(dict.fromkeys((*commits, *(parent for of_one in parents.values() for parent in of_one))))
    lines = {commit: text.splitlines() for commit, text in contents_at(root, every, LOG.as_posix()).items()}
    place, seen = {line: number for number, line in enumerate(here)}, set[str]()
    for commit in commits:
        before = {line for parent in parents[commit] for line in lines.get(parent, [])}
        last = max((place[line] for line in before if line in place), default=-1)
        for line in lines.get(commit, []):
            if line not in seen and line not in before and place.get(line, last + 1) < last:
                problem = f"commit {commit[:10]} put a line before others: {line}"
                raise DataError(problem, file=LOG.as_posix(), row=place[line] + 1, remedy="New lines follow the others")
            seen.add(line)


def note_start(root: Path, own: Registration, worlds: Collection[int], kind: str) -> None:
    """Adds a start to the log. One process at a time writes, and the line is on the disk when this returns.

    Raises:
        DataError: a line of the log was changed or removed.
    """
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind, **asdict(own)}
    line |= {"code": code_of(root), "worlds": sorted(worlds)}
    with in_turn(root / ".work" / "studies" / "log.lock", "another start of a study is being logged"):
        starts(root)
        refuse_edited_log(root)
        (root / LOG).parent.mkdir(parents=True, exist_ok=True)
        with (root / LOG).open("a", encoding="utf-8") as file:
            file.write(("" if _text(root).endswith("\n") or not _text(root) else "\n") + json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def started(line: Mapping[str, Any], own: Registration, number: int, kind: str = VERDICT) -> bool:
    """Returns whether a line of the log is the start of a world of a study."""
    same = (line["study"], line["digest"], line["kind"]) == (own.study, own.digest, kind)
    return same and number in line["worlds"]


@dataclass(frozen=True)
class AbandonedStudy:
    """A study with starts in the log whose file is gone.

    Attributes:
        study: its name.
        first: day of the first start.
        worlds, pilots: how many were started.
        records: how many of the worlds have a record.
        removed: how many had one that a commit of this history removed.
        renamed: the study that has its text now, None without one.
    """

    study: str
    first: str
    worlds: int
    pilots: int
    records: int
    removed: int
    renamed: str | None

    @property
    def text(self) -> str:
        """Returns what became of the study, in words."""
        where = "its file is gone" if self.renamed is None else f"its text is that of '{self.renamed}' now"
        if not self.worlds:
            return f"dropped before its first world: {where}; pilots since {self.first}: {self.pilots}"
        started = f"{self.worlds} worlds and {self.pilots} pilots started since {self.first}"
        removed = f", {self.removed} removed" if self.removed else ""
        return f"abandoned: {where}; {started}, {self.records} records of worlds{removed}"


def abandoned(root: Path) -> list[AbandonedStudy]:
    """Returns the studies of the log whose files are gone or renamed, by name.

    Raises:
        DataError: a line that is not a start.
    """
    files = sorted(file for file in (root / FOLDER).glob("*.yaml") if file.is_file())
    present, digests = {file.stem for file in files}, {digest_of(file): file.stem for file in files}
    gone: dict[str, list[dict[str, Any]]] = {}
    for line in starts(root):
        if line["study"] not in present:
            gone.setdefault(line["study"], []).append(line)
    call = ("log", "--diff-filter=D", "--no-renames", "--name-only", "--format=", "HEAD", "--", RECORDS.as_posix())
    once = {Path(file) for file in (git(root, *call) or "").splitlines()} if gone else set()
    found = []
    for study, lines in sorted(gone.items()):
        worlds = {(kind, number) for line in lines for kind in (line["kind"],) for number in line["worlds"]}
        registered = {number for kind, number in worlds if kind == VERDICT}
        files = [RECORDS / study / f"{number}.json" for number in registered]
        kept = [file for file in files if (root / file).exists()]
        removed = sum(file in once for file in files if file not in kept)
        renamed = next((digests[line["digest"]] for line in lines if line["digest"] in digests), None)
        first, pilots = min(line["time"] for line in lines)[:10], len(worlds) - len(registered)
        found.append(AbandonedStudy(study, first, len(registered), pilots, len(kept), removed, renamed))
    return found
