"""Registration of studies by the commit of their file, and the seeds of the worlds that follow from it.

A study is registered by the commit that introduced the present content of its file. A record counts if that commit is
an ancestor of the record's commit (or the same): then the question was fixed before the world ran. The worlds' seeds
are drawn from the study's name and the file's digest: nobody chooses them, and a changed file has other worlds.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import RecipeError
from tasks.params.studies import FOLDER, TWIN
from tasks.params.yaml_files import parse_mapping
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
#: Seeds whose results were looked at while the world and its settings were made.
SPENT: tuple[range, ...] = (range(10), range(1000, 1101))


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
        """Returns the seed of the study's world of an index, from 0 on; a study of twins has seeds kept for twins."""
        return TWINS.start + index if self.twins else world_seed(self.study, self.digest, index)


def world_seed(study: str, digest: str, index: int) -> int:
    """Returns the seed of a study's world: everything in the world follows from it.

    Args:
        study: its name, so that two studies with one text have different worlds.
        digest: SHA-256 of the study's file.
        index: of the world, from 0 on.
    """
    drawn = hashlib.sha256(f"{study} {digest} world {index}".encode()).digest()
    return FIRST_REGISTERED + int.from_bytes(drawn[:8], "big") % (END_REGISTERED - FIRST_REGISTERED)


def check_tuning_seed(seed: int) -> None:
    """Refuses a seed of a pilot or of tuning whose results were seen, or that is kept for worlds that count.

    Raises:
        RecipeError: names the seeds of tuning.
    """
    if seed not in TUNING:
        why = (
            "is spent: its results were seen while the settings were made" if any(seed in one for one in SPENT) else ""
        )
        raise RecipeError(
            f"seed {seed} {why or 'is not of tuning'}; tuning and pilots have seeds {TUNING.start} to {TUNING.stop - 1}"
        )


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
    rows = parse_mapping(file.read_text(encoding="utf-8"), inside).get("rows")
    twins = isinstance(rows, Mapping) and any(isinstance(one, Mapping) and one.get(TWIN) for one in rows.values())
    return Registration(file.stem, digest_of(file), commit, twins)


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


def why_not_counted(root: Path, own: Registration, number: int, record: Mapping[str, Any]) -> str | None:
    """Returns why a record in the place of a study's world does not count, in words; None where it counts."""
    for name, value in (("study", own.study), ("kind", VERDICT), ("world", number), ("digest", own.digest)):
        if record[name] != value:
            return f"{name} is {record[name]}, not {value}"
    why = why_not_before(root, own.commit, record["commit"])
    return None if why is None else f"{why}; the study is registered by {own.commit[:10]}"


def _git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    call = ["git", "-C", str(root), *words]
    return subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)


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
    if files := uncommitted_code(root):
        raise RecipeError(
            f"{listed(files)} differ from the commit; worlds of a study run from committed code and settings. "
            "Commit or undo the changes, or run a pilot"
        )


def uncommitted_code(root: Path) -> list[str]:
    """Returns files of code, settings and studies that differ from the commit's, in a repository and in that of the
    code that runs."""
    found = changed_since(root, "HEAD", (FOLDER.as_posix(),))
    if root.resolve() != PROJECT and commit_of(PROJECT):
        found += [f"{PROJECT}/{name}" for name in changed_since(PROJECT, "HEAD")]
    return found


def record_file(study: str, number: int, *, pilot: bool = False) -> Path:
    """Returns where the record of a world is, relative to the root."""
    return RECORDS / study / (f"pilot-{number}.json" if pilot else f"{number}.json")


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
