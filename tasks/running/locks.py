"""Work that one process does at a time: a lock that says who holds it and that the system drops with its process."""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from rlhf_core.errors import RewardsmithError


@contextmanager
def only_one(path: Path, busy: str, remedy: str | None) -> Iterator[None]:
    """Holds a lock file; it stays, and the operating system releases the lock when this process dies.

    Args:
        path: of the lock.
        busy: the message if another process holds the lock, as in "another run is active in /tree".
        remedy: what to do then; None to say so and wait.

    Raises:
        RewardsmithError: another process holds it; the message names that process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            held = f"{busy} ({file.read().strip() or 'unknown process'})"
            if remedy is not None:
                raise RewardsmithError(f"{held}. {remedy}") from None
            print(f"{held}: waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(f"process {os.getpid()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}")
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)


def in_turn(path: Path, busy: str) -> AbstractContextManager[None]:
    """Holds a lock file as `only_one` does; while another process holds it, says so and waits."""
    return only_one(path, busy, None)


def only_scheduler(root: Path) -> AbstractContextManager[None]:
    """Holds the working tree's scheduler lock.

    Raises:
        RewardsmithError: another scheduler runs in this tree.
    """
    remedy = "Wait for it, or use a clone or git worktree of your own"
    return only_one(root / ".work" / "scheduler.lock", f"another run is active in {root}", remedy)
