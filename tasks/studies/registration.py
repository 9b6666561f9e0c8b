"""Registration of studies: the seeds that follow from a study's file, and the log of every start.

A study is registered by the commit that adds its file. The numbers of its worlds are drawn from the file's digest, so
that nobody chooses them; a changed file has other worlds. `reference/studies/log.jsonl` holds a line for each start and
is only ever added to.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_jsonl
from tasks.running.commit import commit_of
from tasks.studies.world_seeds import world_seed

RECORDS = Path("reference") / "studies"
LOG = RECORDS / "log.jsonl"


@dataclass(frozen=True)
class Registration:
    """A study's file as git has it.

    Attributes:
        study: its name.
        digest: SHA-256 of the file.
        blob: git's name of the file's content.
        commit: the tree's commit.
    """

    study: str
    digest: str
    blob: str
    commit: str

    def world(self, index: int) -> int:
        """Returns the seed of the study's world of an index, from 0 on."""
        return world_seed(self.digest, index)


def digest_of(file: Path) -> str:
    """Returns SHA-256 of a study's file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def registration(root: Path, file: Path) -> Registration:
    """Returns the registration of a study.

    Raises:
        RecipeError: the file is not committed as it is.
    """
    inside = file.resolve().relative_to(root.resolve()).as_posix()
    own = _git(root, "hash-object", inside)
    committed = _git(root, "rev-parse", "--verify", "--quiet", f"HEAD:{inside}")
    if own is None or own != committed:
        state = "is not committed" if committed is None else "differs from the committed one"
        raise RecipeError(
            f"{inside} {state}; a study is registered by a commit before it runs: git add {inside} && git commit"
        )
    return Registration(file.stem, digest_of(file), own, commit_of(root))


def _git(root: Path, *words: str) -> str | None:
    call = ["git", "-C", str(root), *words]
    done = subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.stdout.strip() if done.returncode == 0 else None


def is_ancestor(root: Path, earlier: str, later: str) -> bool:
    """Returns whether a commit is an ancestor of another one, or the same."""
    return _git(root, "merge-base", "--is-ancestor", earlier, later) is not None


def blob_at(root: Path, commit: str, file: str) -> str | None:
    """Returns git's name of a file's content at a commit; None where there is no such file."""
    return _git(root, "rev-parse", "--verify", "--quiet", f"{commit}:{file}")


def starts(root: Path) -> list[dict[str, Any]]:
    """Returns every start in the log, the first first."""
    return read_jsonl(root / LOG) if (root / LOG).exists() else []


def check_unchanged(root: Path, own: Registration) -> None:
    """Refuses a study whose file was changed after its first start.

    Raises:
        RecipeError: another version of the study was started before.
    """
    for line in starts(root):
        if line["study"] == own.study and line["kind"] == "verdict" and line["digest"] != own.digest:
            raise RecipeError(
                f"studies/{own.study}.yaml was changed after its first start on {line['time'][:10]} (digest "
                f"{line['digest'][:12]}, now {own.digest[:12]}); register the change as a study of another name"
            )


def check_log(root: Path) -> None:
    """Refuses a log of which a committed line was changed or removed.

    Raises:
        DataError: names the first such line.
    """
    committed = _git(root, "show", f"HEAD:{LOG.as_posix()}")
    here = (root / LOG).read_text(encoding="utf-8").splitlines() if (root / LOG).exists() else []
    for number, line in enumerate((committed or "").splitlines(), 1):
        if number > len(here) or here[number - 1] != line:
            remedy = f"Restore it with `git checkout HEAD -- {LOG}`; lines are only added"
            raise DataError("a line was changed or removed", file=LOG.as_posix(), row=number, remedy=remedy)


def note_start(root: Path, own: Registration, worlds: Collection[int], kind: str) -> None:
    """Adds a start to the log, whole or not at all."""
    check_log(root)
    line = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "kind": kind, **asdict(own)}
    before = (root / LOG).read_text(encoding="utf-8") if (root / LOG).exists() else ""
    (root / LOG).parent.mkdir(parents=True, exist_ok=True)
    write_whole(root / LOG, before + json.dumps({**line, "worlds": sorted(worlds)}) + "\n")


def record_file(study: str, number: int, *, pilot: bool = False) -> Path:
    """Returns where the record of a world is, relative to the root."""
    return RECORDS / study / (f"pilot-{number}.json" if pilot else f"{number}.json")


def check_record(root: Path, file: Path, record: Mapping[str, Any], own: Registration) -> None:
    """Refuses a record that does not come from the registered study.

    Raises:
        DataError: names the field.
    """
    name = file.as_posix()
    source = f"studies/{own.study}.yaml"
    if record["digest"] != own.digest:
        raise DataError(f"is of another version of {source}", file=name, field="digest")
    if blob_at(root, record["commit"], source) != own.blob:
        remedy = "A study is committed before its worlds run"
        raise DataError(
            f"commit {record['commit'][:10]} does not have {source}", file=name, field="commit", remedy=remedy
        )
    if not is_ancestor(root, record["commit"], "HEAD"):
        raise DataError(f"commit {record['commit'][:10]} is not in this history", file=name, field="commit")
