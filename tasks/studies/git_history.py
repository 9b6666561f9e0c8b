"""The history that git has of a study's file, the log and the records; replaced objects and grafts do not count."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlhf_core.errors import DataError

#: Git as committed: without `git replace` and grafts, which show one clone another history.
COMMITTED = {"GIT_NO_REPLACE_OBJECTS": "1", "GIT_GRAFT_FILE": os.devnull}


def git(root: Path, *words: str) -> str | None:
    """Returns the output of a git command, None if it failed."""
    call = ["git", "-C", str(root), "-c", "core.quotepath=off", *words]
    done = subprocess.run(
        call, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**os.environ, **COMMITTED}
    )
    return done.stdout if done.returncode == 0 else None


def is_ancestor(root: Path, earlier: str, later: str) -> bool:
    """Returns whether a commit is an ancestor of another one, or the same."""
    return git(root, "merge-base", "--is-ancestor", earlier, later) is not None


def parents_of(root: Path, commit: str) -> list[str]:
    """Returns the commits that a commit follows: none for the first one, several for a merge."""
    return (git(root, "rev-list", "--parents", "-n", "1", commit) or "").split()[1:]


def blob_at(root: Path, commit: str, file: str) -> str | None:
    """Returns git's name of a file's content at a commit; None where there is no such file."""
    found = git(root, "rev-parse", "--verify", "--quiet", f"{commit}:{file}")
    return None if found is None else found.strip()


def blob_of(root: Path, file: str) -> str | None:
    """Returns git's name of a file's content in the working tree; None where there is no such file."""
    if not (root / file).is_file():
        return None
    found = git(root, "hash-object", "--no-filters", "--", file)
    return None if found is None else found.strip()


def content_of(root: Path, blob: str) -> str | None:
    """Returns the text of a file by git's name of its content; None where git does not have it."""
    return git(root, "cat-file", "blob", blob)


def contents_at(root: Path, commits: Sequence[str], file: str) -> dict[str, str]:
    """Returns a file's content at each of some commits, those without it left out."""
    asked = "".join(f"{commit}:{file}\n" for commit in commits).encode()
    call = ["git", "-C", str(root), "cat-file", "--batch"]
    done = subprocess.run(call, check=True, capture_output=True, input=asked, env={**os.environ, **COMMITTED})
    left = done.stdout
    found = {}
    for commit in commits:
        head, _, left = left.partition(b"\n")
        if not head.endswith(b" missing"):
            size = int(head.split()[-1])
            found[commit], left = left[:size].decode(errors="replace"), left[size + 1 :]
    return found


def changes(root: Path, folder: str) -> dict[str, list[str]]:
    """Returns the commits of this history that added, changed or removed each file of a folder, the latest first.

    A merge counts where its file differs from that of every parent.

    Raises:
        DataError: a shallow clone, in which the history is not known.
    """
    if (git(root, "rev-parse", "--is-shallow-repository") or "").strip() == "true":
        remedy = "Fetch it with `git fetch --unshallow`"
        raise DataError("this clone is shallow; the history of its files is unknown", file=folder, remedy=remedy)
    call = ("log", "--full-history", "-c", "--no-renames", "--name-status", "--format=commit:%H", "HEAD", "--", folder)
    found: dict[str, list[str]] = {}
    commit = ""
    for line in (git(root, *call) or "").splitlines():
        if line.startswith("commit:"):
            commit = line.removeprefix("commit:")
        elif line:
            found.setdefault(line.split("\t", 1)[1], []).append(commit)
    return found
