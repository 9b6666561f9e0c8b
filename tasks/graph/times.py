"""Times of stages: what they and their kind took, what a run of them should take, and what the last run took.

Each stage's record has its seconds. A run leaves `.work/runs/<start>.json`: when each stage began, how long its call
took and how long the stage worked, from which comes the orchestration's share.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.graph.results import stopped
from tasks.graph.stages import Stage
from tasks.params.yaml_files import write_whole

RUNS = Path(".work") / "runs"


def clock(seconds: float) -> str:
    """Returns seconds as a person reads them: 48 s, 3.5 min."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _records(root: Path, outs: Iterable[Path]) -> dict[str, dict[str, Any]]:
    """Returns the records of output directories that have one, by the directory below the root."""
    found = {}
    for out in outs:
        with suppress(OSError, ValueError):
            found[out.relative_to(root).as_posix()] = json.loads((out / "record" / "record.json").read_text("utf-8"))
    return found


def _kind_of(out: str) -> tuple[str, str]:
    """Returns the scale and kind of an output directory `results/<scale>/<group>/<kind>/...`."""
    parts = Path(out).parts
    return parts[1], parts[3].partition("-")[0]


# --- before a run ------------------------------------------------------------------------------------------------


def _expected(root: Path, stages: Iterable[Stage], measured: Mapping[str, float]) -> dict[str, float | None]:
    """Returns a number of each stage: its own where it is measured, else the mean of its kind at its scale, else None.

    Stages that stopped did not do what a stage of their kind does.
    """
    own = {out: value for out, value in measured.items() if stopped(root / out / "result") is None}
    kinds: dict[tuple[str, str], list[float]] = {}
    for out, value in own.items():
        kinds.setdefault(_kind_of(out), []).append(value)
    means = {kind: mean(values) for kind, values in kinds.items()}
    return {stage.address: own.get(stage.out, means.get(_kind_of(stage.out))) for stage in stages}


def expected_seconds(root: Path, stages: Iterable[Stage]) -> dict[str, float | None]:
    """Returns the seconds that each stage should take, by records; None where nothing of its kind ran here."""
    records = _records(root, (path.parent.parent for path in (root / "results").glob("**/record/record.json")))
    return _expected(root, stages, {out: float(one["seconds"]) for out, one in records.items() if "seconds" in one})


def expected_bytes(root: Path, stages: Iterable[Stage]) -> float:
    """Returns the disk that the results of the stages which run should take, by the results that are there."""
    sizes = {
        folder.parent.relative_to(root).as_posix(): float(
            sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
        )
        for folder in (root / "results").glob("**/result")
        if folder.is_dir()
    }
    running = [stage for stage in stages if stage.state == "run"]
    return sum(size or 0.0 for size in _expected(root, running, sizes).values())


def seconds_to_end(stages: Mapping[str, Stage], expected: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the seconds of the longest chain that starts with each stage; an unknown time counts as 1 second.

    Args:
        stages: in an order that runs.
        expected: seconds of each.
    """
    behind = dict.fromkeys(stages, 0.0)
    longest: dict[str, float] = {}
    for address, stage in reversed([*stages.items()]):
        own = expected.get(address)
        longest[address] = behind[address] + (1.0 if own is None else own)
        for above in stage.upstream:
            if above in behind:
                behind[above] = max(behind[above], longest[address])
    return longest


def wall_seconds(stages: Mapping[str, Stage], expected: Mapping[str, float | None], slots: int) -> float:
    """Returns the seconds that stages take on some slots, a stage in each: at least those of the longest chain, and of
    all stages spread over the slots.

    Args:
        stages: in an order that runs; one that is restored takes no time.
        expected: seconds of each; an unknown time counts as none.
        slots: stages that run at once.
    """
    seconds = {a: (expected.get(a) or 0.0) if stage.state == "run" else 0.0 for a, stage in stages.items()}
    return max(sum(seconds.values()) / slots, *seconds_to_end(stages, seconds).values(), 0.0)


# --- after a run -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KindTime:
    """Time of all stages of a kind: how many have a record, their own seconds, and the largest memory in MB."""

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
    outs = (path.parent.parent for path in results.glob(f"{group or '*'}/*/**/record/record.json"))
    found: dict[str, list[dict[str, Any]]] = {}
    for out, record in _records(results, outs).items():
        if "seconds" in record:
            found.setdefault(Path(out).parts[1].partition("-")[0], []).append(record)
    seconds = {kind: sum(float(record["seconds"]) for record in records) for kind, records in found.items()}
    total, kinds = sum(seconds.values()) or 1.0, []
    for kind in sorted(found, key=lambda kind: -seconds[kind]):
        peaks = [peak for record in found[kind] if (peak := record.get("peak_memory_mb")) is not None]
        kinds.append(KindTime(kind, len(found[kind]), seconds[kind], seconds[kind] / total, max(peaks, default=None)))
    return kinds


@dataclass(frozen=True)
class StageTime:
    """One stage of a run, in seconds.

    Attributes:
        began: after the run's beginning.
        seconds: of the call, from the scheduler's point of view.
        own: of the stage's work, as its record says; 0 for one that came from the cache.
    """

    stage: str
    outcome: str
    cores: int
    began: float
    seconds: float
    own: float


def stage_time(out: Path, *, stage: str, outcome: str, cores: int, began: float, seconds: float) -> StageTime:
    """Returns a stage that ended, with what its record says of it; never more than its call took (a resumed stage's
    record counts what interrupted runs did, too)."""
    record = next(iter(_records(out, [out]).values()), {}) if outcome == "ran" else {}
    own = min(seconds, record.get("seconds", 0.0))
    return StageTime(stage, outcome, cores, round(began, 2), round(seconds, 2), round(own, 2))


@dataclass
class RunTimes:
    """A run of the scheduler.

    Attributes:
        slots: cores that stages could use.
        started: UTC, and `seconds` until its end, report and MLflow included.
    """

    slots: int
    started: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
    seconds: float = 0.0
    stages: list[StageTime] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = time.monotonic()

    def elapsed(self) -> float:
        """Returns seconds since the run began."""
        return time.monotonic() - self._clock

    def write(self, root: Path) -> None:
        """Ends the run and leaves its file; a run without stages leaves none, nor does a full disk stop the run."""
        self.seconds = round(self.elapsed(), 2)
        if self.stages:
            text = json.dumps(asdict(self), indent=1, sort_keys=True, allow_nan=False)
            with suppress(OSError):
                write_whole(root / RUNS / f"{self.started.replace(':', '')}.json", text + "\n")

    def parts(self) -> dict[str, float]:
        """Returns shares of the run's slot-seconds; they sum to 1.

        `stages`: their own work; `processes, DVC and Prefect`: the rest of the calls; `before and after`: no running
        stage (what is stale, MLflow, the report); `free slots`: while others worked, since nothing was ready.
        """
        whole = max(self.slots * self.seconds, 1e-9)
        own, calls = (sum(getattr(stage, name) * stage.cores for stage in self.stages) for name in ("own", "seconds"))
        covered = end = 0.0
        for stage in sorted(self.stages, key=lambda stage: stage.began):
            covered += max(0.0, stage.began + stage.seconds - max(end, stage.began))
            end = max(end, stage.began + stage.seconds)
        alone = self.slots * max(0.0, self.seconds - covered)
        return {
            "stages": own / whole,
            "processes, DVC and Prefect": (calls - own) / whole,
            "before and after": alone / whole,
            "free slots": max(0.0, whole - calls - alone) / whole,
        }

    def line(self) -> str:
        """Returns the run in one line: stages, wall time, and the share beyond the stages' own work."""
        parts = self.parts()
        beyond = 100 * (1 - parts["stages"] - parts["free slots"])
        return (
            f"Last run, begun {self.started}: {len(self.stages)} stages in {clock(self.seconds)} on {self.slots} "
            f"slot(s); {beyond:.1f} % beyond the stages' own work"
        )


def last_run(root: Path) -> RunTimes | None:
    """Returns the newest run of a tree; a file that cannot be read is passed over with a warning."""
    for path in sorted((root / RUNS).glob("*.json"), reverse=True):
        try:
            run = typed(RunTimes, json.loads(path.read_text(encoding="utf-8")), str(path))
            return replace(run, stages=list(run.stages))
        except (OSError, ValueError, RecipeError) as error:
            print(f"warning: {path} was skipped ({error}); remove it", file=sys.stderr)
    return None
