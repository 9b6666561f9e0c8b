"""The plan as `rewardsmith plan` prints it: a table of stages, then a line with time and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.commands.options import print_table
from tasks.dvc.stale import requested_stages
from tasks.graph.stages import Stage
from tasks.graph.times import clock, expected_bytes, expected_seconds, wall_seconds
from tasks.running import machine

STYLES = {"run": "yellow", "restore": "cyan", "current": "dim"}
WORDS = {"run": "run", "restore": "from cache", "current": "up to date"}


def print_plan(
    root: Path, paper: str, rows: Sequence[str], seeds: Sequence[int], *, scale: str, full: bool, all_stages: bool
) -> None:
    """Prints what a run would do.

    Args:
        paper: of which the rows are; SUITE for the demo or, in full, the five papers' matrix.
        all_stages: also those that are up to date.
    """
    stages = requested_stages(root, paper, rows, seeds, scale=scale, full=full)
    seconds = expected_seconds(root, stages.values())
    shown = [stage for stage in stages.values() if all_stages or stage.state != "current"]
    lines = []
    for stage in shown:
        known, (why, *others) = seconds[stage.address], stage.reasons or ("",)
        expected = ("?" if known is None else clock(known)) if stage.state == "run" else ""
        why += f" (and {len(others)} more)" if others else ""
        lines.append((stage.address.rpartition(":")[2], WORDS[stage.state], expected, why))
    print_table(("stage", "what", "expected", "why"), lines, styles=[STYLES[stage.state] for stage in shown])
    print(_summary(root, stages, seconds))


def _summary(root: Path, stages: Mapping[str, Stage], seconds: Mapping[str, float | None]) -> str:
    """Returns the number of stages by state, and expected time and disk of the stages that run."""
    counts = {word: sum(stage.state == state for stage in stages.values()) for state, word in WORDS.items()}
    line = ", ".join(f"{count} {word}" for word, count in counts.items() if count)
    running = [stage for stage in stages.values() if stage.state == "run"]
    if not running:
        return line
    known = [second for stage in running if (second := seconds[stage.address]) is not None]
    if known:
        cores, gpus = (max(stage.needs.get(need, 0) for stage in running) for need in ("cores", "gpus"))
        slots = max(1, len(machine.gpus()) // gpus if gpus else machine.cores() // max(1, cores))
        line += f"; about {clock(wall_seconds(stages, seconds, slots))} on {slots} slot(s), {clock(sum(known))} of work"
        line += f" beside {len(running) - len(known)} stage(s) never run here" if len(known) < len(running) else ""
    size, free = expected_bytes(root, stages.values()) / 2**30, machine.free_disk_gb(root)
    shown = f"about {size:.2f} GiB" if size else "unknown size (nothing of its kind ran here)"
    line += f"; disk: {shown} in the cache, {free:.0f} GiB free"
    return line + (". NOT ENOUGH: `dvc gc -w`, or a cache on another disk (`dvc cache dir`)" if size > free else "")
