"""The plan as `rewardsmith plan` prints it: a table of stages, then a line with time and disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.commands.options import print_table
from tasks.dvc.pipelines import asked_papers
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
    _print_table(stages, seconds, all_stages)
    print(_summary(root, stages, seconds))
    if _most(stages, "gpus"):
        for name in asked_papers(root, paper, scale=scale, full=full):
            _print_costs(root, scale, name, stages)


def _print_table(stages: Mapping[str, Stage], seconds: Mapping[str, float | None], all_stages: bool) -> None:
    shown = [stage for stage in stages.values() if all_stages or stage.state != "current"]
    rows = []
    for stage in shown:
        known, (why, *others) = seconds[stage.address], stage.reasons or ("",)
        expected = ("?" if known is None else clock(known)) if stage.state == "run" else ""
        why += f" (and {len(others)} more)" if others else ""
        rows.append((stage.address.rpartition(":")[2], WORDS[stage.state], expected, why))
    print_table(("stage", "what", "expected", "why"), rows, styles=[STYLES[stage.state] for stage in shown])


def _most(stages: Mapping[str, Stage], need: str) -> int:
    """Returns the most that a stage which runs needs: of cores or gpus."""
    return max((stage.needs.get(need, 0) for stage in stages.values() if stage.state == "run"), default=0)


def _side_by_side(stages: Mapping[str, Stage]) -> int:
    """Returns the number of stages that fit this machine at once: by GPUs if a stage needs one, else by cores."""
    if gpus := _most(stages, "gpus"):
        return max(1, len(machine.gpus()) // gpus)
    return max(1, machine.cores() // max(1, _most(stages, "cores")))


def _summary(root: Path, stages: Mapping[str, Stage], seconds: Mapping[str, float | None]) -> str:
    """Returns the number of stages by state, and expected time and disk of the stages that run."""
    counts = {state: sum(stage.state == state for stage in stages.values()) for state in WORDS}
    line = ", ".join(f"{counts[state]} {WORDS[state]}" for state in WORDS if counts[state])
    times = [seconds[a] for a, stage in stages.items() if stage.state == "run"]
    known_times = [t for t in times if t is not None]
    if known_times:
        side_by_side = _side_by_side(stages)
        wall = wall_seconds(stages, seconds, side_by_side)
        line += f"; about {clock(wall)} on {side_by_side} slot(s), {clock(sum(known_times))} of work"
        unknown = len(times) - len(known_times)
        line += f" beside {unknown} stage(s) never run here" if unknown else ""
    if counts["run"]:
        size = expected_bytes(root, stages.values()) / 2**30
        shown = f"about {size:.2f} GiB" if size else "unknown size (nothing of its kind ran here)"
        line += f"; disk: {shown} in the cache, {machine.free_disk_gb(root):.0f} GiB free"
        if size > machine.free_disk_gb(root):
            line += ". NOT ENOUGH: `dvc gc -w`, or a cache on another disk (`dvc cache dir`)"
    return line


def _print_costs(root: Path, scale: str, paper: str, planned: Mapping[str, Stage]) -> None:
    """Prints GPU hours and memory of a paper's stages at a scale that needs GPUs, by the documented models of both.

    Args:
        planned: all stages of the plan; of those that run, kinds of stages are listed by backbone.
    """
    from rlhf_core.models.forecast import GIB, Sharding
    from tasks.graph.scale_check import check_scale

    gpus = 8 if scale == "paper" else 1
    try:
        stages = check_scale(root, scale, Sharding(gpus, 3 if gpus > 1 else None, bf16=gpus > 1), paper)
    except RecipeError as error:
        print(f"{paper}: no estimate ({error})")
        return
    kinds = {stage.kind for stage in planned.values() if stage.state == "run"}
    backbones = {stage.name for stage in planned.values() if stage.kind == "sft"}
    for stage in stages:
        if stage.stage.partition(" ")[0] not in kinds or stage.backbone not in backbones:
            continue
        each = f"{stage.total / GIB:.0f} GiB on each of {gpus} GPU(s)"
        print(f"{paper}: {stage.backbone} {stage.stage}: about {stage.gpu_hours:.1f} GPU hours a seed, {each}")
