"""`rewardsmith watch`: the stages that train now, with their curves and alarms, on the terminal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from tasks.running.watching import Changes, Watch

#: Seconds between looks.
SECONDS = 1.0
#: Seconds without a stage that trains after which the watch ends, if no run is active in the tree.
QUIET_SECONDS = 30.0
NOTHING = "no stage trains here and no run is active; start one in another terminal, such as `rewardsmith run`"


def watch(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[PAPER | ROW]...", help="Only these; every stage without any.")
    ] = None,
) -> None:
    """Show the stages that train now: step, curves, alarms as they ring, and the time that is left.

    It follows `rewardsmith run`, `dvc repro` and the worlds of studies in this tree from another terminal. It ends with
    the run, or on Ctrl-C. Where the output is not a terminal, or NO_COLOR is set, it prints a line for each change.

    Examples: `rewardsmith watch` · `rewardsmith watch par/vanilla`.
    """
    from rich.console import Console

    from tasks.running.live_stages import live_stages, run_is_active
    from tasks.running.watching import Watch

    root = Path.cwd()
    _refuse_unknown(root, names or [])
    console, watched = Console(markup=False, highlight=False), Watch(root, names or ())
    try:
        if not any(stage.working for stage in live_stages(root)) and not run_is_active(root):
            print(NOTHING)
        elif console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR"):
            _on_terminal(watched, console)
        else:
            _by_line(watched)
    except KeyboardInterrupt:
        return


def _refuse_unknown(root: Path, names: list[str]) -> None:
    """Refuses a name that is neither a paper nor a row, nor the name of a stage that trains.

    Raises:
        RecipeError: names the nearest known ones.
    """
    from rlhf_core.errors import RecipeError, hint
    from tasks.graph.names import papers_of_repository
    from tasks.graph.rows import backbone_names, row_addresses
    from tasks.running.live_stages import live_stages

    if not names:
        return
    papers = papers_of_repository(root)
    rows = {(paper, row) for paper in papers for row in row_addresses(root, paper)}
    known = {*papers, *backbone_names(root), *(row for _, row in rows), *("/".join(row) for row in rows)}
    known |= {name for stage in live_stages(root) for name in stage.names}
    for name in names:
        if name not in known:
            raise RecipeError(f"unknown paper or row '{name}'{hint(name, sorted(known), more=3)}")


def _looks(watched: Watch) -> Iterator[Changes]:
    """Yields the changes of each look, until no stage has trained and no run was active for QUIET_SECONDS."""
    from tasks.running.live_stages import run_is_active

    busy = time.monotonic()
    while time.monotonic() - busy < QUIET_SECONDS:
        yield watched.look()
        if watched.stages or run_is_active(watched.root):
            busy = time.monotonic()
        time.sleep(SECONDS)


def _by_line(watched: Watch) -> None:
    """Prints a line for each change."""
    for changes in _looks(watched):
        for line in (*changes.steps, *changes.alarms, *changes.ends):
            print(line, flush=True)


def _on_terminal(watched: Watch, console: Console) -> None:
    """Shows the stages in place; alarms and ends stay above them."""
    from rich.live import Live
    from rich.text import Text

    from tasks.running.watching import shown_stages

    with Live(console=console, auto_refresh=False, transient=True) as live:
        for changes in _looks(watched):
            for line in changes.alarms:
                console.print(line, style="bold red")
            for line in changes.ends:
                console.print(line)
            shown = shown_stages(watched, console.width, console.height, console.encoding)
            live.update(Text("\n".join(shown) or "no stage trains now; the run goes on"), refresh=True)
