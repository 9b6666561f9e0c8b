"""Seconds and disk that stages should take, by what they and their kind took before."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from tasks.graph.results import stopped
from tasks.graph.stages import Stage

#: Numbers of a record are at most so large.
LARGEST = 1e15


def expected_seconds(root: Path, stages: Iterable[Stage]) -> dict[str, float | None]:
    """Returns seconds a stage took here before: its own record, else the mean of its kind at its scale, else None."""
    records: dict[str, float] = {}
    kinds: dict[tuple[str, str], list[float]] = {}
    for path in (root / "results").glob("**/record/record.json"):
        if stopped(path.parent.parent / "result") is not None:
            continue  # it did not do what a stage of its kind does
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        if (seconds := number_of(record, "seconds")) is None:
            continue
        out = path.parent.parent.relative_to(root)
        records[out.as_posix()] = seconds
        kinds.setdefault(_kind_of(out.as_posix()), []).append(seconds)
    expected: dict[str, float | None] = {}
    for stage in stages:
        same = kinds.get(_kind_of(stage.out), [])
        expected[stage.address] = records.get(stage.out, mean(same) if same else None)
    return expected


def number_of(record: Any, name: str) -> float | None:
    """Returns a number of at least 0 that a record holds; None where it holds none of this name."""
    value = record.get(name) if isinstance(record, Mapping) else None
    return float(value) if isinstance(value, int | float) and 0 <= value <= LARGEST else None


def seconds_to_end(stages: Mapping[str, Stage], expected: Mapping[str, float | None]) -> dict[str, float]:
    """Returns the seconds of the longest chain that starts with each stage; an unknown time counts as 1 second."""
    downstream: dict[str, list[str]] = {address: [] for address in stages}
    for address, stage in stages.items():
        for upstream in stage.upstream:
            if upstream in downstream:
                downstream[upstream].append(address)
    longest: dict[str, float] = {}
    for address in reversed(list(stages)):
        own = expected.get(address) or 1.0
        longest[address] = own + max((longest[reader] for reader in downstream[address]), default=0.0)
    return longest


def side_by_side_seconds(stages: Mapping[str, Stage], expected: Mapping[str, float | None], slots: int) -> float:
    """Returns the seconds that stages take on some slots, a stage in each: whenever a slot is free, it takes the stage
    with the longest chain behind it of those whose inputs are there.

    Args:
        stages: in an order that runs; one that is restored takes no time.
        expected: seconds of each; an unknown time counts as none.
        slots: stages that run at once.
    """
    seconds = {a: (expected.get(a) or 0.0) if stage.state == "run" else 0.0 for a, stage in stages.items()}
    behind = seconds_to_end(stages, seconds)
    waiting, ends, now = set(stages), dict[str, float](), 0.0
    while waiting:
        busy = sum(end > now for end in ends.values())
        ready = [
            address
            for address in waiting
            if all(ends.get(above, now + 1) <= now for above in stages[address].upstream if above in stages)
        ]
        if ready and busy < slots:
            chosen = max(ready, key=lambda address: (behind[address], address))
            waiting.remove(chosen)
            ends[chosen] = now + seconds[chosen]
        else:
            now = min(end for end in ends.values() if end > now)
    return max(ends.values(), default=0.0)


def clock(seconds: float) -> str:
    """Returns seconds as a person reads them: 48 s, 3.5 min."""
    return f"{seconds / 60:.1f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _kind_of(out: str) -> tuple[str, str]:
    """Returns the scale and kind of an output directory `results/<scale>/<group>/<kind>/...`."""
    parts = Path(out).parts
    return parts[1], parts[3]


def expected_bytes(root: Path, stages: Iterable[Stage]) -> float:
    """Returns the disk that the results of stages which run should take: as their present results, else as their kind's
    mean."""
    own: dict[str, int] = {}
    kinds: dict[tuple[str, str], list[int]] = {}
    for path in (root / "results").glob("**/result"):
        if stopped(path) is not None:
            continue
        out = path.parent.relative_to(root).as_posix()
        own[out] = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        kinds.setdefault(_kind_of(out), []).append(own[out])
    total = 0.0
    for stage in stages:
        if stage.state == "run":
            same = kinds.get(_kind_of(stage.out), [])
            total += own.get(stage.out, mean(same) if same else 0.0)
    return total
