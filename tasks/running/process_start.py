"""The moment at which this process began to work for its stage."""

from __future__ import annotations

import time

import psutil

_told: float | None = None


def begins_now() -> None:
    """Notes that this process, forked beforehand, gets its command now: what it waited for is no part of its start."""
    global _told
    _told = time.time()


def began() -> float:
    """Returns seconds since the epoch: when the process got its command, else when it was made."""
    return psutil.Process().create_time() if _told is None else _told
