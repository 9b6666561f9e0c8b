"""Commands that train: `rewardsmith run`, `worker`, `plan` and `rehearse`, and what they print."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlhf_core.errors import DataError
from tasks.commands.options import Full, Names, Remote, Scale, Seeds, Verbose, print_table, refuse_empty_name
from tasks.commands.processes import run_flow, show_progress
from tasks.graph.names import ALL, REHEARSED, SUITE, known_scale, split_names
from tasks.running import machine
from tasks.running.machine import refuse_unusable_disk
from tasks.running.platform_state import join_platform

if TYPE_CHECKING:
    from tasks.dvc.pipelines import Request
    from tasks.graph.stages import Stage

#: Exit status of a run with failed stages; rows that ended have results.
RUN_FAILED = 1
#: By state of a stage: its word, and the style of its line.
STATES = {"run": ("run", "yellow"), "restore": ("from cache", "cyan"), "current": ("up to date", "dim")}
#: Most rows of a table at a run's end, and most rows without a result that are named.
MOST_ROWS, MOST_NAMED = 16, 4


def run(
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    report: Annotated[bool, typer.Option(help="Write the report page afterwards.")] = True,
    sync: Annotated[bool, typer.Option(help="Mirror the results into MLflow afterwards.")] = True,
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run the stages on the workers of this Prefect work pool (docs/cluster.md).",
            callback=refuse_empty_name,
        ),
    ] = None,
    remote: Remote = None,
    verbose: Verbose = False,
) -> None:
    """Train and evaluate the rows that are not up to date, in parallel on this machine's cores and GPUs.

    Examples: `rewardsmith run` (the demo) · `rewardsmith run segment` (its headline rows) ·
    `rewardsmith run demo-all` · `rewardsmith run segment --full` ·
    `rewardsmith run bandit token --seed 0` · `rewardsmith run par odin` (a row of the full matrix alone). Logs of each
    stage: `.work/logs/`. Interrupting is safe: the same command continues where it stopped.
    """
    from tasks.dvc.ended_runs import nothing_to_do
    from tasks.dvc.pipelines import Request

    root = Path.cwd()
    if remote and not pool:
        raise typer.BadParameter("it goes with --pool, whose results it carries", param_hint="--remote")
    refuse_unusable_disk(root)
    paper, rows = split_names(root, names or [])
    full = full or names == [ALL]
    join_platform(root)
    request = Request(paper, scale, full, tuple(rows), tuple(seed or ()), report, sync)
    if not pool and (current := nothing_to_do(root, request)) is not None:
        print(current)
        print_run_end(root, request)
        return
    request.refuse(root)
    began = time.time()
    choice: dict[str, Any] = {"paper": paper, "scale": scale, "full": full, "rows": rows, "seeds": seed}
    choice |= {"report": report, "sync": sync, "pool": pool or "", "remote": remote or ""}
    status = run_flow("paper", choice, verbose=verbose)
    if status in (0, RUN_FAILED):
        print_run_end(root, request, began)
    raise typer.Exit(status)


def worker(
    pool: Annotated[
        str,
        typer.Option(metavar="NAME", help="The Prefect work pool; made if there is none.", callback=refuse_empty_name),
    ],
    limit: Annotated[int | None, typer.Option(min=1, help="Stages at once; by default this machine's cores.")] = None,
    verbose: Verbose = False,
) -> None:
    """Serve a work pool: run stages of `rewardsmith run --pool NAME` on this machine, until Ctrl-C.

    Give it a clone of its own at the run's commit, with PREFECT_API_URL at the shared server. It runs stages of that
    commit and of its versions only. Example: `rewardsmith worker --pool gpus`.
    """
    raise typer.Exit(run_flow("worker", {"pool": pool, "limit": limit}, verbose=verbose))


def plan(
    names: Names = None,
    full: Full = False,
    seed: Seeds = None,
    scale: Scale = "testbed",
    all_stages: Annotated[bool, typer.Option("--all", help="Also list the stages that are up to date.")] = False,
) -> None:
    """Show what `run` would do and why, what comes from the cache, and how long it should take."""
    from tasks.dvc.pipelines import Request
    from tasks.dvc.stale import requested_stages
    from tasks.graph.times import expected_seconds

    root = Path.cwd()
    paper, rows = split_names(root, names or [])
    stages = requested_stages(root, Request(paper, scale, full or names == [ALL], tuple(rows), tuple(seed or ())))
    print_plan(root, stages, expected_seconds(root, stages.values()), all_stages)
    print_unread(stages.values())


def rehearse(
    names: Names = None,
    scale: Annotated[
        str, typer.Option(help="The scale: small or paper; a project's own by default.", callback=known_scale)
    ] = REHEARSED,
    rows: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of <name>.<split>.jsonl[.gz] with real rows.")
    ] = None,
    verbose: Verbose = False,
) -> None:
    """Run everything of a scale in small before GPUs are paid: every stage, table, figure and MLflow run.

    Models are tiny and random, data are a few rows, judges and teachers are played by this machine; no number is a
    result. The list at the end says which cells stay empty and why. Exits with 1 when a cell is empty without a reason
    or a stage failed. Everything is in `.work/rehearsal/<scale>/`. What a scale costs: `rewardsmith doctor --scale`.

    Examples: `rewardsmith rehearse all --scale paper --rows ../shared/data` · `rewardsmith rehearse segment dpo`.
    """
    from transformers.utils import logging

    from tasks.dvc.pipelines import Request
    from tasks.graph.check import refuse_rows
    from tasks.rehearsal.empty_cells import listing_of
    from tasks.rehearsal.endpoint import endpoints
    from tasks.rehearsal.tree import environment, write_tree

    paper, chosen = split_names(Path.cwd(), names or [])
    logging.disable_progress_bar()  # of stand-ins, each written in a moment
    tree, name = write_tree(Path.cwd(), scale, rows)
    asked = dict.fromkeys(Request(paper, name, full=True).papers(tree), tuple(chosen))
    refuse_rows(tree, name, asked)
    choice = {"paper": paper, "scale": name, "full": paper == SUITE, "rows": chosen}
    show_progress(verbose)
    with endpoints() as served:
        status = run_flow("paper", choice, verbose=verbose, folder=tree, environment=environment(tree, served))
    found, file = listing_of(tree, name, asked), tree / "rehearsal.md"
    if status and not found.failed:
        found.failed["flow"] = f"the flow ended with status {status}; its log is above"
    file.write_text(found.text(scale), encoding="utf-8")
    print(found.text(scale), f"list: {file}; report: {tree / 'report' / 'index.html'}", sep="\n")
    raise typer.Exit(found.status)


def print_plan(
    root: Path, stages: Mapping[str, Stage], seconds: Mapping[str, float | None], all_stages: bool = False
) -> None:
    """Prints the stages of a run as a table, then a line with their number, time and disk.

    Args:
        stages: by address.
        seconds: that each is expected to take; None if that is not known.
        all_stages: also those that are up to date.
    """
    from tasks.graph.times import clock, expected_bytes, wall_seconds

    lines, styles = [], []
    for stage in (stage for stage in stages.values() if all_stages or stage.state != "current"):
        known, (why, *others) = seconds[stage.address], stage.reasons or ("",)
        why += f" (and {len(others)} more)" if others else ""
        expected = ("?" if known is None else clock(known)) if stage.state == "run" else ""
        word, style = STATES[stage.state]
        lines.append((stage.address.rpartition(":")[2], word, expected, why))
        styles.append(style)
    print_table(("stage", "what", "expected", "why"), lines, styles=styles)
    states = [stage.state for stage in stages.values()]
    line = ", ".join(f"{states.count(state)} {word}" for state, (word, _) in STATES.items() if state in states)
    running = [stage for stage in stages.values() if stage.state == "run"]
    if not running:
        print(line)
        return
    known_seconds = [second for stage in running if (second := seconds[stage.address]) is not None]
    if known_seconds:
        cores, gpus = (max(stage.needs.get(need, 0) for stage in running) for need in ("cores", "gpus"))
        slots = max(1, len(machine.gpus()) // gpus if gpus else machine.cores() // max(1, cores))
        work = f"{clock(sum(known_seconds))} of work"
        line += f"; about {clock(wall_seconds(stages, seconds, slots))} on {slots} slot(s), {work}"
        unknown = len(running) - len(known_seconds)
        line += f" beside {unknown} stage(s) never run here" if unknown else ""
    size, free = expected_bytes(root, stages.values()) / 2**30, machine.free_disk_gb(root)
    shown = f"about {size:.2f} GiB" if size else "unknown size (nothing of its kind ran here)"
    line += f"; disk: {shown} in the cache, {free:.0f} GiB free"
    print(line + (". NOT ENOUGH: `dvc gc -w`, or a cache on another disk (`dvc cache dir`)" if size > free else ""))


def print_unread(stages: Iterable[Stage]) -> None:
    """Prints the columns of preference pairs that stages `prepare` do not read, a line for each data set with any."""
    from tasks.data_specs.data_sets import unread_of_spec
    from tasks.params.data import RealSpec, data_spec
    from tasks.params.pages import Address, read_settings

    commands = [stage.command.split() for stage in stages if stage.kind == "prepare"]
    for name in dict.fromkeys(words[words.index("--spec") + 1] for words in commands):
        spec = data_spec(read_settings(Address(name)), name)
        with suppress(DataError):  # files that cannot be read are refused by the stage
            if isinstance(spec, RealSpec) and (unread := unread_of_spec(spec)):
                print(f"{name}: columns that are not read: {', '.join(unread)}")


def print_run_end(root: Path, request: Request, began: float = math.inf) -> None:
    """Prints the rows that a run was asked for, each beside its baseline, and why others have no result.

    Args:
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.
    """
    from rich.console import Console

    from tasks.report.comparison import compared_table, meanings
    from tasks.report.row_runs import run_end
    from tasks.report.table import print_tables

    groups, without = run_end(root, request.scale, request.parts(root), began=began)
    console = Console(highlight=False, markup=False)
    for group in groups:
        print_tables(console.width, compared_table(group, titles=False, most=MOST_ROWS))
        for line in (*meanings(group)[:MOST_ROWS], *group.caveats):
            console.print(line)
        if (left := len(group.rows) - MOST_ROWS) > 0:
            console.print(f"{left} more: rewardsmith rows {group.rows[0].paper}", style="dim")
    for reason in dict.fromkeys(without.values()):
        names = [address for address, why in without.items() if why == reason]
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        console.print(f"{', '.join(names[:MOST_NAMED])}{more}: {reason}", soft_wrap=True)
