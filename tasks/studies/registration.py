"""Registration of studies by the commit of their file, and the seeds of their worlds.

A study is registered by the commit that introduced the present content of its file. The worlds' seeds are drawn from
the study's name and the file's digest: nobody chooses them, and a changed file has other worlds. A record counts if
the study's commit is an ancestor of the record's (or the same): then the question was fixed before the world ran.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.params.studies import FOLDER, read_study
from tasks.running.artifacts import PROJECT
from tasks.running.commit import changed_since, commit_of, git, listed

#: Seeds of registered worlds: from the first number on, below the second.
FIRST_REGISTERED, END_REGISTERED = 10**6, 2**31 - 10**6
#: Seeds of tuning and pilots.
TUNING = range(100, 200)
#: Seeds of a row compared with itself: of its worlds, and, this much above them, of its second runs.
TWINS, TWIN_APART = range(200, 300), 50


@dataclass(frozen=True)
class Registration:
    """A study's file as git has it.

    Attributes:
        study: its name.
        digest: SHA-256 of the file.
        commit: that introduced the file's present content.
        twins: whether rows are compared with themselves; their worlds have seeds of their own.
    """

    study: str
    digest: str
    commit: str
    twins: bool = False

    def world_seed(self, index: int) -> int:
        """Returns the seed of the study's world of an index, from 0 on: everything in the world follows from it."""
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
    if git(root, "diff", "--quiet", "HEAD", "--", file).returncode:
        return None
    return git(root, "log", "-1", "--format=%H", "--", file).stdout.strip() or None


def why_not_before(root: Path, earlier: str, later: str) -> str | None:
    """Returns why nothing shows that a commit came before a later one, in words; None where it did."""
    status = git(root, "merge-base", "--is-ancestor", earlier, later).returncode
    if status <= 1:
        return None if status == 0 else f"commit {later[:10]} does not follow commit {earlier[:10]}"
    return (
        f"commit {later[:10]} is not in this clone; fetch the whole history with `git fetch --unshallow`, and never "
        "squash or rebase a study"
    )


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
