"""Times of stages: what they and their kind took, and what a run of them should take. Each stage's record has its
seconds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from tasks.graph.results import stopped
from tasks.graph.stages import Stage


def clock(seconds: float) -> str:
    """Returns seconds as a person reads them: 48 s, 3.5 min."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _seconds(root: Path) -> dict[str, float]:
    """Returns the seconds of each output directory below the root that has a record of them."""
    found = {}
    for path in (root / "results").glob("**/record/record.json"):
        with suppress(OSError, ValueError, KeyError):
            record: dict[str, Any] = json.loads(path.read_text("utf-8"))
            found[path.parents[1].relative_to(root).as_posix()] = float(record["seconds"])
    return found


def _kind_of(out: str) -> tuple[str, str]:
    """Returns the scale and kind of an output directory `results/<scale>/<group>/<kind>/...`."""
    parts = Path(out).parts
    return parts[1], parts[3].partition("-")[0]


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
    return _expected(root, stages, _seconds(root))


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
