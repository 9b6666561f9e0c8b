"""Progress of a run on the terminal: a bar where there is one, else a line per stage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tasks.graph.expected import clock

#: Set by `rewardsmith run`: progress instead of Prefect's log on the terminal.
SWITCH = "REWARDSMITH_PROGRESS"


class Silent:
    """Shows nothing: Prefect's log tells what happens."""

    def started(self, stage: str) -> None:
        """Shows that a stage began."""

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        """Shows that a stage ended; `seconds_left` is what the run should still take."""


class StageLines(Silent):
    """One line per finished stage."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        self.done += 1
        left = f", about {clock(seconds_left)} left" if seconds_left else ""
        print(f"[{self.done:>3}/{self.total}] {stage} {text}{left}", flush=True)


class Bar(StageLines):
    """A bar that names the running stages, with the finished ones above it."""

    def __init__(self, total: int, bar: Any) -> None:
        super().__init__(total)
        self.bar = bar
        self.running: list[str] = []
        self.task = bar.add_task("starting", total=total)

    def started(self, stage: str) -> None:
        self.running.append(stage)
        self.bar.update(self.task, description=", ".join(self.running))

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        self.running = [name for name in self.running if name != stage]
        left = f", about {clock(seconds_left)} left" if seconds_left else ""
        self.bar.console.print(f"{stage} {text}{left}", highlight=False)
        self.bar.update(self.task, advance=1, description=", ".join(self.running))


@contextmanager
def progress(total: int) -> Iterator[Silent]:
    """Yields the display for a run of `total` stages."""
    if os.environ.get(SWITCH) != "true" or not total:
        yield Silent()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    if not console.is_terminal:
        yield StageLines(total)
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield Bar(total, bar)
