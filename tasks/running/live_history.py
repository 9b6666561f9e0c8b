"""History of a training stage while it runs, which MLflow shows (`tasks.tracking.live`).

Its folder in `.work/checkpoints/` has history.jsonl, the first rows of the file that the result will have.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

WORK = Path(".work") / "checkpoints"
FILE = "history.jsonl"


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
