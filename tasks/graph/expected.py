"""Seconds and disk that stages should take, by what they and their kind took before."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import mean

from tasks.graph.stages import Stage
from tasks.graph.stopping import stopped


def expected_seconds(root: Path, stages: Iterable[Stage]) -> dict[str, float | None]:
    """Returns seconds a stage took here before: its own record, else the mean of its kind at its scale, else None."""
    records: dict[str, float] = {}
    kinds: dict[tuple[str, str], list[float]] = {}
    for path in (root / "results").glob("**/record/record.json"):
        if stopped(path.parent.parent / "result") is not None:
            continue  # it did not do what a stage of its kind does
        try:
            seconds = float(json.loads(path.read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            continue
        out = path.parent.parent.relative_to(root)
        records[out.as_posix()] = seconds
        kinds.setdefault(_kind_of(out.as_posix()), []).append(seconds)
    expected: dict[str, float | None] = {}
    for stage in stages:
        same = kinds.get(_kind_of(stage.out), [])
        expected[stage.address] = records.get(stage.out, mean(same) if same else None)
    return expected


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
