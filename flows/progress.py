"""Progress of a run: on a terminal a bar and a line for each stage that trains, else a line per finished stage."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tasks.graph.expected import clock
from tasks.running.watching import Watch, levels_of, stage_course

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

#: Set by `rewardsmith run`: progress instead of Prefect's log on the terminal.
SWITCH = "REWARDSMITH_PROGRESS"


class Display:
    """Display of a run's progress; a method that is not overridden shows nothing."""

    def started(self, stage: str) -> None:
        """Shows that a stage began."""

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        """Shows that a stage ended; `seconds_left` is what the run should still take."""

    def look(self) -> None:
        """Shows how far the stages are that train now."""


class Silent(Display):
    """Display that shows nothing: Prefect's log tells what happens."""


class StageLines(Display):
    """One line per finished stage."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        self.done += 1
        left = f", about {clock(seconds_left)} left" if seconds_left else ""
        print(f"[{self.done:>3}/{self.total}] {stage} {text}{left}", flush=True)


class Bar(StageLines):
    """A bar that names the running stages, below a line for each that trains; finished ones and alarms stay above.

    Args:
        total: stages of the run.
        root: the repository.
        console: the terminal.
    """

    def __init__(self, total: int, root: Path, console: Console) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
        from rich.text import Text

        super().__init__(total)
        self.watch, self.levels = Watch(root), levels_of(console.encoding)
        self.lines: list[str] = []
        display = self

        class Shown(Progress):
            def get_renderables(self) -> Iterable[RenderableType]:
                yield from (Text(line, no_wrap=True, overflow="ellipsis") for line in display.lines)
                yield from super().get_renderables()

        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.bar = Shown(*columns, console=console, transient=True)
        self.running: list[str] = []
        self.task = self.bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def started(self, stage: str) -> None:
        self.running.append(stage)
        self.bar.update(self.task, description=", ".join(self.running))

    def finished(self, stage: str, text: str, seconds_left: float | None) -> None:
        self.running = [name for name in self.running if name != stage]
        left = f", about {clock(seconds_left)} left" if seconds_left else ""
        self.bar.console.print(f"{stage} {text}{left}", highlight=False)
        self.bar.update(self.task, advance=1, description=", ".join(self.running))

    def look(self) -> None:
        for line in self.watch.look().alarms:
            self.bar.console.print(line, highlight=False)
        now = self.watch.now()
        self.lines = [stage_course(stage, now, self.levels) for stage in self.watch.stages]


@contextmanager
def progress(total: int, root: Path) -> Iterator[Display]:
    """Yields the display for a run of `total` stages in a repository."""
    if os.environ.get(SWITCH) != "true" or not total:
        yield Silent()
        return
    from rich.console import Console

    console = Console(markup=False)
    if not console.is_terminal:
        yield StageLines(total)
        return
    with Bar(total, root, console) as bar:
        yield bar
