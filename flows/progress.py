"""Progress of a run: on a terminal a bar, and a line for each finished stage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tasks.graph.times import clock

#: Set by `rewardsmith run`: progress instead of Prefect's log on the terminal.
SWITCH = "REWARDSMITH_PROGRESS"


class Display:
    """Progress of a run: the running stages in a bar on a terminal, a line for each finished stage.

    Args:
        total: number of stages of the run.
        bar: None where the output is not a terminal.
        silent: whether Prefect's log tells what happens instead.
    """

    def __init__(self, total: int, bar: Progress | None = None, *, silent: bool = False) -> None:
        self.total, self.bar, self.silent, self.done = total, bar, silent, 0
        self.running: list[str] = []
        self.task = None if bar is None else bar.add_task("starting", total=total)

    def started(self, stage: str) -> None:
        """Shows that a stage began."""
        self.running.append(stage)
        self._update()

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        """Shows that a stage ended.

        Args:
            seconds_left: of the run, as expected.
        """
        self.running = [name for name in self.running if name != stage]
        self.done += 1
        left = f", about {clock(seconds_left)} left" if seconds_left else ""
        if self.bar is not None:
            self.bar.console.print(f"{stage} {text}{left}", highlight=False)
        elif not self.silent:
            print(f"[{self.done:>3}/{self.total}] {stage} {text}{left}", flush=True)
        self._update()

    def _update(self) -> None:
        if self.bar is not None and self.task is not None:
            self.bar.update(self.task, completed=self.done, description=", ".join(self.running))


@contextmanager
def progress(total: int) -> Iterator[Display]:
    """Yields the display for a run of `total` stages."""
    console = Console(markup=False)
    if os.environ.get(SWITCH) != "true" or not total or not console.is_terminal:
        yield Display(total, silent=os.environ.get(SWITCH) != "true")
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as bar:
        yield Display(total, bar)
