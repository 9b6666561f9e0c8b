"""The schedule on a described cluster as `rewardsmith plan --workers 64xH100` prints it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_core.errors import RecipeError
from rlhf_core.models.cost import PEAK, PEAKS
from rlhf_core.models.memory import Sharding
from tasks.dvc.stale import requested_stages
from tasks.graph.cluster import FLOW_RUN_SECONDS, Machine, SimulatedRun, machines_of, simulate
from tasks.graph.expected import clock, expected_seconds
from tasks.graph.scale_check import forecast_hours
from tasks.graph.stages import Stage, closure


def print_cluster_plan(
    root: Path,
    paper: str,
    rows: Sequence[str],
    seeds: Sequence[int],
    *,
    scale: str,
    full: bool,
    workers: str,
    price: float | None,
) -> None:
    """Prints what a run would take on a cluster: a line for each paper alone, then for all together.

    Args:
        paper: of which the rows are; SUITE for the demo or, in full, the five papers' matrix.
        workers: the cluster, such as `64xH100`.
        price: of one GPU for an hour, or of one core on a cluster without GPUs.
    """
    machines = machines_of(workers)
    stages = requested_stages(root, paper, rows, seeds, scale=scale, full=full)
    seconds, unknown = seconds_on(root, stages, scale, machines)
    owners = sorted({stage.owner for stage in stages.values() if stage.state == "run"} - {"shared"})
    parts = {one: closure(stages, [a for a, s in stages.items() if s.owner == one]) for one in owners}
    if len(parts) != 1:
        parts["all"] = dict(stages)
    schedules = {name: simulate(part, seconds, machines) for name, part in parts.items()}
    _print_table(schedules, parts, machines, price)
    last = next(reversed(schedules.values()))
    shown = " > ".join(address.rpartition(":")[2] for address in last.critical)
    print(f"longest chain, {_hours(last.critical_seconds)}: {shown or 'no stage runs'}")
    counts = Counter(stages[address].kind for address in unknown)
    if counts:
        names = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        share = f"{len(unknown)} of {len(seconds)} stages"
        print(f"{share} are without an estimate and counted as {FLOW_RUN_SECONDS:g} s each: {names}")


def seconds_on(
    root: Path, stages: Mapping[str, Stage], scale: str, machines: Sequence[Machine]
) -> tuple[dict[str, float], list[str]]:
    """Returns the seconds of the stages that run, each with the flow run around it, and the stages without an estimate.

    A stage's seconds are those that it took here before, else the mean of its kind; else the forecast of
    `rewardsmith doctor --scale`, on the cluster's slowest GPU.
    """
    measured = expected_seconds(root, stages.values())
    kinds = {machine.kind for machine in machines if machine.gpus}
    peak = min((PEAKS[kind].operations for kind in kinds), default=0.0)
    run = {address: stage for address, stage in stages.items() if stage.state == "run"}
    forecasts = _forecasts(root, scale, run) if peak and any(measured[address] is None for address in run) else {}
    found, unknown = dict[str, float](), list[str]()
    for address, stage in run.items():
        known = measured[address]
        hours = forecasts.get((stage.owner, stage.kind, _name(stage, stages)))
        if known is None and hours is not None and stage.needs.get("gpus"):
            known = hours * 3600 * PEAK / peak / stage.needs["gpus"]
        if known is None:
            unknown.append(address)
        found[address] = (known or 0.0) + FLOW_RUN_SECONDS
    return found, unknown


def _forecasts(root: Path, scale: str, run: Mapping[str, Stage]) -> dict[tuple[str, str, str], float]:
    """Returns GPU hours by owner, kind and name; what papers share has the owner `shared` too."""
    found: dict[tuple[str, str, str], float] = {}
    sharding = Sharding(8, 3, bf16=True)
    for paper in sorted({stage.owner for stage in run.values()} - {"shared"}):
        try:
            hours = forecast_hours(root, scale, sharding, paper)
        except RecipeError as error:
            print(f"{paper}: no forecast ({error})")
            continue
        for (kind, name), value in hours.items():
            if value:  # 0 where the number of rows is unknown
                found[paper, kind, name] = found["shared", kind, name] = value
    return found


def _name(stage: Stage, stages: Mapping[str, Stage]) -> str:
    """Returns the name by which a stage's forecast goes: a policy's row, else the backbone that the stage loads."""
    if stage.kind in ("policy", "sft"):
        return stage.name
    above = (stages[address] for address in stage.upstream if address in stages)
    return next((one.name for one in above if one.kind == "sft"), "")


def _print_table(
    schedules: Mapping[str, SimulatedRun],
    parts: Mapping[str, Mapping[str, Stage]],
    machines: Sequence[Machine],
    price: float | None,
) -> None:
    from rich.console import Console
    from rich.table import Table

    unit = "GPU" if any(machine.gpus for machine in machines) else "core"
    counts = Counter(machine.kind for machine in machines)
    title = ", ".join(f"{count} machine(s) of {kind}" for kind, count in sorted(counts.items()))
    table = Table(title=title, box=None, pad_edge=False)
    table.add_column("paper")
    for column in ("stages", "takes", "longest chain", f"{unit} hours", "idle", *(["price"] if price else [])):
        table.add_column(column, justify="right")
    for name, schedule in schedules.items():
        runs = sum(stage.state == "run" for stage in parts[name].values())
        cells = [str(runs), _hours(schedule.seconds), _hours(schedule.critical_seconds)]
        cells += [f"{schedule.busy / 3600:,.1f}", f"{100 * schedule.idle_share:.0f} %"]
        cells += [f"{schedule.places * schedule.seconds / 3600 * price:,.0f}"] if price else []
        table.add_row(name, *cells)
    Console(markup=False).print(table)


def _hours(seconds: float) -> str:
    """Returns seconds as a person reads them, also those of days."""
    return f"{seconds / 3600:,.1f} h" if seconds >= 2 * 3600 else clock(seconds)
