"""Notes of a training stage while it runs, for those who watch it.

Its folder in `.work/checkpoints/` has training.json (the process, and how many steps it takes) and the first rows of
files that the result will have: history.jsonl, and of a policy checkpoints.jsonl and alarms.jsonl.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tasks.params.yaml_files import write_whole
from tasks.running.platform_state import note_of

WORK = Path(".work") / "checkpoints"
FILE, EVALUATIONS, ALARMS = "history.jsonl", "checkpoints.jsonl", "alarms.jsonl"
TRAINING = "training.json"


def run_folder(stage: str, out: Path | str) -> str:
    """Returns the name of a run's folder below WORK, by kind of stage and output directory."""
    return f"{stage}-{hashlib.sha256(Path(out).as_posix().encode()).hexdigest()[:12]}"


def begin_training(folder: Path, out: Path | str, *, steps: int, done: int) -> None:
    """Notes that this process trains, and removes the rows of an interrupted run, which are written again.

    Args:
        folder: of the run.
        out: the stage's output directory.
        steps: of the whole training.
        done: steps of interrupted runs that this one goes on from.
    """
    for file in (FILE, EVALUATIONS, ALARMS):
        (folder / file).unlink(missing_ok=True)
    note = {"out": Path(out).as_posix(), "steps": steps, "done": done, "began": time.time(), **note_of(os.getpid())}
    write_whole(folder / TRAINING, json.dumps(note, indent=1) + "\n")


def read_history(path: Path) -> list[dict[str, Any]]:
    """Returns the whole rows of a history that is being written; none before its first. Damaged lines are left out."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    rows = []
    for line in lines:
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    return [row for row in rows if isinstance(row, dict)]


class LiveHistory:
    """A file that follows a history. It is removed with the run's checkpoints, when the result is there.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.written = path, 0

    def write(self, history: Sequence[Mapping[str, Any]]) -> None:
        """Adds the rows that are new; the first call replaces what an interrupted run left."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a" if self.written else "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in history[self.written :])
        self.written = len(history)
