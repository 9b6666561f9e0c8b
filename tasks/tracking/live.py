"""Stages in MLflow while they train: each has its run from its start, with the rows of its history as they come.

    python -m tasks.tracking.live --paper segment

A flow starts this process and tells it by standard input, one line each, which stages start and end: `start ADDRESS`,
`end ADDRESS`. A stage that ended has its result recorded as `tasks.tracking.mirror` does it. Where the input ends, the
runs of stages that are still running become KILLED; they go on when their stage does.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError, prints_errors
from tasks.graph.items import SHARED
from tasks.running.progress import FILE, WORK, read_history, run_folder
from tasks.tracking.databases import without_passwords
from tasks.tracking.mirror import Mirror, only_writer, tracking_uri
from tasks.tracking.outcomes import TrackedStage, outcome_of, tracked_stage
from tasks.tracking.run_content import log_metrics, row_metrics

#: Seconds between looks at the histories.
SECONDS = 2.0


class LiveRuns:
    """Runs of the stages that are running.

    Args:
        root: the repository.
        paper: whose experiment has the stages that several papers share.
    """

    def __init__(self, root: Path, paper: str) -> None:
        self.root, self.paper = root, paper
        self.mirrors: dict[tuple[str, str], Mirror] = {}
        self.working: dict[str, tuple[TrackedStage, Mirror, Any]] = {}
        self.logged: dict[str, int] = {}

    def _mirror(self, stage: TrackedStage) -> Mirror:
        scale, owner = stage.key.split("/")[:2]
        of = self.paper if owner == SHARED else owner, scale
        if of not in self.mirrors:
            self.mirrors[of] = Mirror(self.root, *of)
        return self.mirrors[of]

    def start(self, address: str) -> None:
        """Begins the run of a stage, or goes on with it."""
        stage = tracked_stage(self.root, address)
        with only_writer(self.root):
            mirror = self._mirror(stage)
            self.working[address] = stage, mirror, mirror.start(stage)
        self.logged[address] = 0

    def look(self) -> None:
        """Logs the new rows of every history."""
        for address, (stage, mirror, run) in self.working.items():
            rows = read_history(self.root / WORK / run_folder(stage.kind, stage.out.relative_to(self.root)) / FILE)
            new = rows[self.logged[address] :]
            if new:
                log_metrics(mirror.client, run.info.run_id, row_metrics(new, "", run.info.start_time))
                self.logged[address] = len(rows)

    def end(self, address: str) -> None:
        """Records what a stage left."""
        stage, mirror, _ = self.working.pop(address)
        outcome = outcome_of(self.root, stage)
        with only_writer(self.root):
            if outcome is None:
                mirror.interrupt(stage)
                return
            mirror.record(outcome)
            mirror.drop(stage)

    def close(self) -> None:
        """Marks the runs of stages that were interrupted."""
        self.look()
        for stage, mirror, _ in self.working.values():
            mirror.interrupt(stage)


def follow(root: Path, paper: str, lines: int) -> None:
    """Shows stages in MLflow until the input ends.

    Args:
        root: the repository.
        paper: whose experiment has the stages that several papers share.
        lines: file descriptor from which the starts and ends come.
    """
    runs, pending = LiveRuns(root, paper), b""
    while True:
        if select.select([lines], [], [], SECONDS)[0]:
            read = os.read(lines, 65536)
            if not read:
                break
            *whole, pending = (pending + read).split(b"\n")
            for line in whole:
                word, _, address = line.decode().partition(" ")
                {"start": runs.start, "end": runs.end}[word](address)
        runs.look()
    runs.close()


@prints_errors
def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.tracking.live", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--paper", required=True, help="whose experiment has the shared stages")
    parser.add_argument("--root", type=Path, default=Path(), help="the repository (default: this directory)")
    options = parser.parse_args(arguments)
    from mlflow.exceptions import MlflowException

    root = options.root.resolve()
    try:
        follow(root, options.paper, sys.stdin.fileno())
    except MlflowException as error:
        raise RewardsmithError(without_passwords(f"MLflow at {tracking_uri(root)}: {error}")) from None
    return 0


if __name__ == "__main__":
    sys.exit(main())
