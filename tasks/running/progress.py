"""Progress of a stage while it runs: some lines, and a training's history.

MLflow shows the history (`tasks.tracking.live`). Its folder in `.work/checkpoints/` has history.jsonl, the first rows
of the file that the result will have.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlhf_core import distributed

LINES = 5
WORK = Path(".work") / "checkpoints"
#: Finished trainings that other stages of a study's world continue from.
REUSED = Path(".work") / "reused_training"
FILE = "history.jsonl"


@contextmanager
def progress(label: str, steps: int, done: int = 0) -> Iterator[Callable[..., None]]:
    """Yields `advance(**figures)`, to be called once a step; `done` steps are behind a resumed run."""
    started = time.monotonic()

    def advance(**figures: float) -> None:
        nonlocal done
        done += 1
        if not distributed.rank() and (done == steps or done % max(1, steps // LINES) == 0):
            text = " ".join(f"{name} {value:.3f}" for name, value in figures.items())
            print(f"{label}: {done}/{steps} {text} {time.monotonic() - started:.0f} s", file=sys.stderr)

    yield advance


def run_folder(stage: str, out: Path | str) -> str:
    """Returns the name of a run's folder below WORK, by kind of stage and output directory."""
    return f"{stage}-{hashlib.sha256(Path(out).as_posix().encode()).hexdigest()[:12]}"


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
