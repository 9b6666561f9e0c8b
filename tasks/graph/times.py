"""Times: of each kind of stage from the results' records, and of a run from its scheduler's notes.

A run leaves `.work/runs/<start>.json`: when each stage began, how long its call took, how long the stage says that it
worked, and what came before and after the stages. From it comes the orchestration's share.
"""

from __future__ import annotations

import calendar
import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.graph.expected import LARGEST, clock, number_of
from tasks.params.yaml_files import write_whole

RUNS = Path(".work") / "runs"
#: Of a run's beginning, UTC.
STAMP = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class KindTime:
    """Time and memory of all stages of a kind.

    Attributes:
        kind: the module, such as reward_model.
        stages: how many have a record.
        seconds: their own, in all.
        share: of all kinds' seconds.
        peak_memory_mb: the largest of a stage; None where no record says.
    """

    kind: str
    stages: int
    seconds: float
    share: float
    peak_memory_mb: float | None

    @property
    def each(self) -> float:
        """Returns seconds of a stage, on average."""
        return self.seconds / self.stages


def by_kind(results: Path, group: str | None = None) -> list[KindTime]:
    """Returns the seconds of finished stages by kind of stage, the longest kind first.

    Args:
        results: of a scale, `results/<scale>`.
        group: a paper, or 'shared'; all without it.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(results.glob(f"{group or '*'}/*/**/record/record.json")):
        record = _record(path.parent.parent)
        if number_of(record, "seconds") is not None:
            found.setdefault(path.relative_to(results).parts[1].partition("-")[0], []).append(record)
    seconds = {kind: sum(number_of(record, "seconds") or 0.0 for record in records) for kind, records in found.items()}
    total = sum(seconds.values()) or 1.0
    kinds = []
    for kind in sorted(found, key=lambda kind: -seconds[kind]):
        peaks = [peak for record in found[kind] if (peak := number_of(record, "peak_memory_mb")) is not None]
        kinds.append(KindTime(kind, len(found[kind]), seconds[kind], seconds[kind] / total, max(peaks, default=None)))
    return kinds


def _record(out: Path) -> dict[str, Any]:
    """Returns a stage's record; empty if it is missing or cannot be read."""
    try:
        value = json.loads((out / "record" / "record.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True)
class StageTime:
    """One stage of a run, in seconds.

    Attributes:
        began: after the run's beginning.
        seconds: of the call, from the scheduler's point of view.
        own: of the stage's work, as its record says; 0 for one that came from the cache.
        startup: of its process before that: Python and its libraries.
    """

    stage: str
    outcome: str
    cores: int
    began: float
    seconds: float
    own: float
    startup: float


def stage_time(out: Path, *, stage: str, outcome: str, cores: int, began: float, seconds: float) -> StageTime:
    """Returns a stage that ended, with what its record says of it; never more than its call took (a resumed stage's
    record counts what interrupted runs did, too)."""
    record = _record(out) if outcome == "ran" else {}
    own = min(seconds, number_of(record, "seconds") or 0.0)
    startup = min(seconds - own, number_of(record, "startup_seconds") or 0.0)
    return StageTime(stage, outcome, cores, round(began, 2), round(seconds, 2), round(own, 2), round(startup, 2))


@dataclass
class RunTimes:
    """A run of the scheduler.

    Attributes:
        slots: cores that stages could use.
        started: UTC, and `seconds` until its end, report and MLflow included.
    """

    slots: int
    started: str = field(default_factory=lambda: time.strftime(STAMP, time.gmtime()))
    seconds: float = 0.0
    stages: list[StageTime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = time.monotonic()

    def elapsed(self) -> float:
        """Returns seconds since the run began."""
        return time.monotonic() - self._clock

    def write(self, root: Path) -> None:
        """Ends the run and leaves its file; a run without stages leaves none.

        A disk that takes no file is not worth a run: what failed on it says so itself, and the file of the last writing
        stays as it is.
        """
        self.seconds = round(self.elapsed(), 2)
        if self.stages:
            text = json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False)
            with suppress(OSError):
                write_whole(root / RUNS / f"{self.started.replace(':', '')}.json", text + "\n")

    def parts(self) -> dict[str, float]:
        """Shares of the run's slot-seconds; they sum to 1.

        `stages`: their own work; `start of processes`: Python and its libraries; `DVC and Prefect`: the rest of the
        calls; `before and after`: no running stage (what is stale, MLflow, the report); `free slots`: while others
        worked, since nothing was ready.
        """
        whole = max(self.slots * self.seconds, 1e-9)
        own = sum(stage.own * stage.cores for stage in self.stages)
        startup = sum(stage.startup * stage.cores for stage in self.stages)
        calls = sum(stage.seconds * stage.cores for stage in self.stages)
        alone = self.slots * max(0.0, self.seconds - _covered(self.stages))
        return {
            "stages": own / whole,
            "start of processes": startup / whole,
            "DVC and Prefect": (calls - own - startup) / whole,
            "before and after": alone / whole,
            "free slots": max(0.0, whole - calls - alone) / whole,
        }


def _covered(stages: Iterable[StageTime]) -> float:
    """Returns the seconds in which at least one stage runs."""
    total = end = 0.0
    for stage in sorted(stages, key=lambda stage: stage.began):
        total += max(0.0, stage.began + stage.seconds - max(end, stage.began))
        end = max(end, stage.began + stage.seconds)
    return total


def last_run(root: Path) -> RunTimes | None:
    """Returns the newest run of a tree that ran a stage; a file that cannot be read is passed over with a warning."""
    for path in sorted((root / RUNS).glob("*.json"), reverse=True):
        try:
            run = typed(RunTimes, json.loads(path.read_text(encoding="utf-8")), "it")
            numbers = (run.slots, run.seconds, *chain.from_iterable(map(_numbers, run.stages)))
            if run.stages and all(map(_is_moderate, numbers)):
                return replace(run, stages=list(run.stages))
            raise ValueError("no stages, or numbers that no run has")
        except (OSError, ValueError, RecursionError, RecipeError) as error:
            print(
                f"warning: {path} is not a file of a run's times ({error}) and was skipped; remove it", file=sys.stderr
            )
    return None


def _is_moderate(number: float) -> bool:
    return abs(number) <= LARGEST


def _numbers(stage: StageTime) -> tuple[float, ...]:
    return stage.cores, stage.began, stage.seconds, stage.own, stage.startup


def print_times(root: Path, scale: str, group: str | None) -> None:
    """Prints the table of kinds, and the shares of the last run."""
    from rich.console import Console
    from rich.table import Table

    kinds = by_kind(root / "results" / scale, group)
    table = Table(box=None, pad_edge=False)
    table.add_column("kind of stage")
    for column in ("stages", "in all", "each", "share", "peak memory"):
        table.add_column(column, justify="right")
    for kind in kinds:
        peak = "" if kind.peak_memory_mb is None else f"{kind.peak_memory_mb:.0f} MB"
        cells = (str(kind.stages), clock(kind.seconds), clock(kind.each), f"{100 * kind.share:.1f} %", peak)
        table.add_row(kind.kind, *cells)
    if kinds:
        Console(markup=False).print(table)
        total = sum(kind.seconds for kind in kinds)
        print(f"{sum(kind.stages for kind in kinds)} stages, {clock(total)} of their own work")
    else:
        print(f"no stage has finished in results/{scale}")
    run = last_run(root)
    if run is not None:
        print(f"\n{run_line(run)}")
        for name, share in run.parts().items():
            print(f"  {100 * share:5.1f} %  {name}")


def run_line(run: RunTimes) -> str:
    """Returns a run in one line: stages, wall time, and the share beyond the stages' own work."""
    own = mean(stage.own for stage in run.stages)
    beyond = 1 - sum(run.parts()[name] for name in ("stages", "free slots"))
    return (
        f"Last run, begun {_moment(run.started)}: {_count(len(run.stages), 'stage')} of {clock(own)} each in "
        f"{clock(run.seconds)} on {_count(run.slots, 'slot')}; {100 * beyond:.1f} % beyond the stages' own work"
    )


def _moment(stamp: str) -> str:
    """Returns a time stamp as people read it: '26 November 2026, 04:28 UTC'; another text as it is."""
    try:
        moment = time.strptime(stamp, STAMP)
    except ValueError:
        return stamp
    month = calendar.month_name[moment.tm_mon]
    return f"{moment.tm_mday} {month} {moment.tm_year}, {moment.tm_hour:02}:{moment.tm_min:02} UTC"


def _count(number: int, what: str) -> str:
    """'1 slot', '2 slots'."""
    return f"{number} {what}{'s' * (number != 1)}"
