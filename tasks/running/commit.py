"""The commit that a tree is at, and whether what a run executes differs from it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from rlhf_core.errors import RewardsmithError

#: Files and folders that a run executes or reads; a deployment stays at their commit.
CODE = ("flows", "tasks", "rlhf_core", "params", "params.yaml", "dvc.yaml", "constraints.txt")


def git(root: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs git in a tree; returns its exit status and what it printed."""
    call = ["git", "-C", str(root), *words]
    return subprocess.run(call, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def commit_of(root: Path) -> str:
    """Returns the tree's commit; empty outside git."""
    done = git(root, "rev-parse", "HEAD")
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_since(root: Path, commit: str, also: Sequence[str] = ()) -> list[str]:
    """Returns files of CODE, and of other folders, that differ in the tree from those of a commit: changed, removed, or
    new and not ignored."""
    found: list[str] = []
    for call in (("diff", "--name-only", commit), ("ls-files", "--others", "--exclude-standard")):
        done = git(root, *call, "--", *CODE, *also)
        if done.returncode:
            raise RewardsmithError(f"commit {commit[:10]} is not in this repository: {done.stderr.strip()}")
        found += done.stdout.splitlines()
    return found


def listed(files: Sequence[str]) -> str:
    """Returns the first three of some files, and how many more there are."""
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
