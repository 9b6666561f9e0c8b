"""Work that one process does at a time: a lock that says who holds it and that the system drops with its process."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rlhf_core.errors import RewardsmithError


@contextmanager
def only_one(path: Path, busy: str, remedy: str) -> Iterator[None]:
    """Holds a lock file; it stays, and the operating system releases the lock when this process dies.

    Args:
        path: of the lock.
        busy: the message if another process holds the lock, as in "another run is active in /tree".
        remedy: what to do then.

    Raises:
        RewardsmithError: another process holds it; the message names that process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RewardsmithError(f"{busy} ({_holder(file)}). {remedy}") from None
        with _named(file):
            yield


@contextmanager
def in_turn(path: Path, busy: str) -> Iterator[None]:
    """Holds a lock file as `only_one` does; while another process holds it, says so and waits.

    Args:
        path: of the lock.
        busy: the message if another process holds the lock, as in "another sync writes into MLflow".
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{busy} ({_holder(file)}): waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        with _named(file):
            yield


def _holder(file: TextIO) -> str:
    """Returns the holder of a lock file, in words."""
    file.seek(0)
    return file.read().strip() or "unknown process"


@contextmanager
def _named(file: TextIO) -> Iterator[None]:
    """Names this process in a lock file that it holds."""
    file.truncate(0)
    file.write(f"process {os.getpid()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}")
    file.flush()
    try:
        yield
    finally:
        file.truncate(0)


@contextmanager
def only_scheduler(root: Path) -> Iterator[None]:
    """Holds the working tree's scheduler lock; the operating system releases it when this process dies.

    Raises:
        RewardsmithError: another scheduler runs in this tree.
    """
    remedy = "Wait for it, or use a clone or git worktree of your own"
    with only_one(root / ".work" / "scheduler.lock", f"another run is active in {root}", remedy):
        yield
