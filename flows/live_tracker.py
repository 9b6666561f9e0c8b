"""Stages of a run shown in MLflow while they train, by a process beside the flow (`tasks.tracking.live`)."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.stage_run import stage_environment
from flows.working_tree import WORK
from tasks.graph.stages import Stage
from tasks.tracking.outcomes import TRACKED

#: Seconds that the process has for its last words.
SECONDS = 60.0


class LiveTracker:
    """The process that shows stages in MLflow, started with the first stage that it shows.

    A run does not depend on it: what it could not show, the mirror at the end of the run shows.

    Args:
        paper: whose experiment has the stages that several papers share.
    """

    def __init__(self, root: Path, paper: str, log: Any) -> None:
        self.root, self.paper, self.log = root, paper, log
        self.process: subprocess.Popen[str] | None = None
        self.output = root / WORK / "logs" / "live-runs.log"

    def write(self, word: str, stage: Stage) -> None:
        """Says that a stage starts (`start`) or ended (`end`)."""
        if stage.kind in TRACKED:
            self.process = self.process or self._begin()
            with suppress(BrokenPipeError):  # `close` says why it ended
                print(word, stage.address, file=self.process.stdin, flush=True)

    def _begin(self) -> subprocess.Popen[str]:
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with self.output.open("w", encoding="utf-8") as output:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "tasks.tracking.live", "--paper", self.paper],
                cwd=self.root,
                env=stage_environment(self.root, {}),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def close(self) -> None:
        """Ends the process after all that it was told."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.communicate(timeout=SECONDS)
        self.process.kill()
        if self.process.wait():
            last = (self.output.read_text(encoding="utf-8").strip().splitlines() or ["no output"])[-1]
            self.log.warning("MLflow did not show all of this run while it ran: %s", last.removeprefix("error: "))
