"""Which process runs which flow run: what tells a living run from one whose process was killed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from tasks.platform_state import FOLDER, alive, note_of, read_private, write_private


def notes_folder(root: Path) -> Path:
    """Where the platform keeps the notes; a recipe's worktree notes in the tree that the platform belongs to."""
    return Path(os.environ.get("REWARDSMITH_PLATFORM", root.resolve() / FOLDER)) / "flow-runs"


@contextmanager
def noted(root: Path) -> Iterator[None]:
    """Notes this process as the one of the present flow run, while it lasts."""
    from prefect.runtime import flow_run

    if "REWARDSMITH_PLATFORM" not in os.environ or not flow_run.id:
        yield
        return
    path = notes_folder(root) / f"{flow_run.id}.json"
    write_private(path, note_of(os.getpid()) | {"root": str(root.resolve())})
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def process_of(folder: Path, run: str) -> psutil.Process | None:
    """The living process of a flow run: the noted one, else one that a worker started for it."""
    note: dict[str, Any] = read_private(folder / f"{run}.json")
    if alive(note):
        return psutil.Process(int(note["pid"]))
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT__FLOW_RUN_ID") == run and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except psutil.Error:
            continue
    return None
