"""Stages that train now as lines of text, and their changes from one look to the next."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_core.evaluation.hacking_alarm import Alarm
from tasks.graph.expected import clock
from tasks.running.alarms import alarms_of
from tasks.running.live_stages import LiveStage, ending, live_stages

#: Levels of a sparkline, and the same where the terminal has no such characters.
LEVELS, PLAIN_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"
#: Values of a sparkline; each is a mean where a series has more.
POINTS = 10
#: Columns of a metric's name and value.
NAME, VALUE = 8, 7


def number(value: float) -> str:
    """Returns a value with four significant digits."""
    return f"{value:.4g}" if abs(value) < 1000 or not math.isfinite(value) else f"{value:.0f}"


def levels_of(encoding: str) -> str:
    """Returns the levels of sparklines that a terminal's encoding has."""
    return LEVELS if encoding.lower().startswith("utf") else PLAIN_LEVELS


def sparkline(values: Sequence[float], levels: str = LEVELS) -> str:
    """Returns the course of a series in at most POINTS characters; a value that is not finite is a blank."""
    size = max(1, math.ceil(len(values) / POINTS))
    parts = [values[first : first + size] for first in range(0, len(values), size)]
    means = [sum(part) / len(part) for part in parts]
    finite = [value for value in means if math.isfinite(value)]
    if not finite or not math.isfinite(max(finite) - min(finite)):
        return " " * len(means)
    low, span = min(finite), max(finite) - min(finite)
    height = (len(levels) - 1) / span if span else 0.0
    return "".join(levels[round((v - low) * height)] if math.isfinite(v) else " " for v in means)


def time_left(stage: LiveStage, now: float) -> str:
    """Returns the time of training that is left, in words."""
    seconds = stage.seconds_left(now)
    if stage.step >= stage.steps:
        return "evaluates"
    return "just begun" if seconds is None else f"about {clock(seconds)} left"


def stage_line(stage: LiveStage, now: float) -> str:
    """Returns a stage in one line: step, last values and the time that is left."""
    values = [f"{name} {number(series[-1])}" for name, series in stage.series.items()]
    return ", ".join([f"{stage.name}: step {stage.step}/{stage.steps}", *values, time_left(stage, now)])


def stage_course(stage: LiveStage, now: float, levels: str = LEVELS) -> str:
    """Returns a stage in one line with the courses of its metrics, the most telling first."""
    cells = [f"{name} {number(series[-1])} {sparkline(series, levels)}" for name, series in stage.series.items()]
    return "  ".join([*_head(stage, now), *cells])


def _head(stage: LiveStage, now: float) -> tuple[str, ...]:
    return stage.name, f"step {stage.step}/{stage.steps}", time_left(stage, now)


def stage_block(stage: LiveStage, now: float, width: int, levels: str = LEVELS) -> list[str]:
    """Returns a stage in lines of at most `width` columns: its step, then its metrics with their courses."""
    cells = [
        f"  {name:<{NAME}} {number(series[-1]):>{VALUE}} {sparkline(series, levels):<{POINTS}}"
        for name, series in stage.series.items()
    ]
    in_line = max(1, width // (NAME + VALUE + POINTS + 4))
    lines = ["".join(cells[first : first + in_line]).rstrip() for first in range(0, len(cells), in_line)]
    return [line[:width] for line in ["  ".join(_head(stage, now)), *lines]]


@dataclass(frozen=True)
class Changes:
    """New lines since the last look: stages that took a step, alarms that rang, stages that train no longer."""

    steps: tuple[str, ...]
    alarms: tuple[str, ...]
    ends: tuple[str, ...]


@dataclass
class Watch:
    """Changes of the stages that train, from one look to the next.

    Args:
        root: the repository.
        wanted: papers and rows to watch; all without any.
        now: seconds since the epoch.

    Attributes:
        stages: those that trained at the last look.
    """

    root: Path
    wanted: Collection[str] = ()
    now: Callable[[], float] = time.time
    stages: list[LiveStage] = field(default_factory=list)
    _rang: set[tuple[Path, Alarm]] = field(default_factory=set)

    def look(self) -> Changes:
        """Reads the notes again."""
        found = {stage.folder: stage for stage in live_stages(self.root) if self._is_wanted(stage)}
        before, working = self.stages, [stage for stage in found.values() if stage.working]
        known = {stage.folder: (stage.began, stage.step) for stage in before}
        steps = [stage_line(s, self.now()) for s in working if known.get(s.folder) != (s.began, s.step)]
        alarms = [line for stage in working for line in self._new_alarms(stage, stage.alarms)]
        ends = []
        for stage in before:
            last = found.get(stage.folder)
            if last is None:  # its result is there
                alarms += self._new_alarms(stage, alarms_of(stage.tree / stage.out / "result"))
            elif not last.working:
                alarms += self._new_alarms(stage, last.alarms)
            if last is None or not last.working:
                ends.append(f"{stage.name}: {ending(stage)}")
        self.stages = working
        return Changes(tuple(steps), tuple(alarms), tuple(ends))

    def _is_wanted(self, stage: LiveStage) -> bool:
        return not self.wanted or bool(stage.names & set(self.wanted))

    def _new_alarms(self, stage: LiveStage, alarms: Iterable[Alarm]) -> list[str]:
        """Returns a line for each alarm that rang since the last look."""
        new = [alarm for alarm in alarms if (stage.folder, alarm) not in self._rang]
        self._rang |= {(stage.folder, alarm) for alarm in new}
        return [f"ALARM {stage.name}: {alarm.kind} at step {alarm.step}: {alarm.message}" for alarm in new]


def shown_stages(watched: Watch, width: int, height: int, encoding: str) -> list[str]:
    """Returns the stages of a watch as lines that fit a terminal.

    Args:
        watched: after a look.
        width, height: of the terminal.
        encoding: of the terminal.
    """
    levels = levels_of(encoding)
    lines = [line for stage in watched.stages for line in stage_block(stage, watched.now(), width - 1, levels)]
    if len(lines) <= height - 1:
        return lines
    return [*lines[: height - 2], f"... {len(watched.stages)} stages train; name rows to see fewer"]
