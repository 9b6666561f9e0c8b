"""Notes that failed stages leave in `.work/failures/` until they succeed."""

from __future__ import annotations

import calendar
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.running.platform_state import read_private

FOLDER = Path(".work/failures")
#: Pattern of the start of a scheduler's message, before the stage's own words.
STAGE_FAILED = re.compile(r"^stage \S+ failed with exit code -?\d+: ")


@dataclass(frozen=True)
class StageFailure:
    """A failed stage.

    Attributes:
        message: of its error, in the stage's own words.
        log: its log file, below the repository.
    """

    message: str
    log: str


def failures_since(tree: Path, began: float) -> dict[str, StageFailure]:
    """Returns the stages that have failed since a time, in seconds since the epoch, by output directory."""
    notes = map(read_private, sorted((tree / FOLDER).glob("*.json")))
    # a note's time is in whole seconds, so that of a failure may be before `began` by less than one
    return {str(note.get("out")): _failure(note) for note in notes if _seconds(note.get("time")) + 1 > began}


def _failure(note: Mapping[str, Any]) -> StageFailure:
    message = STAGE_FAILED.sub("", str(note.get("message", "its note has no message")))
    return StageFailure(message, str(note.get("log", ".work/logs/")))


def _seconds(written: Any) -> float:
    """Returns the seconds since the epoch of a note's time, long ago for anything else."""
    try:
        return calendar.timegm(time.strptime(str(written), "%Y-%m-%dT%H:%M:%SZ"))
    except ValueError:
        return -math.inf
