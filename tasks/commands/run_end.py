"""The end of a run on the terminal: rows beside their baselines, what the differences mean, one next command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.commands.compare import difference_text, mean_text, meanings
from tasks.commands.fitted_table import print_fitted
from tasks.dvc.pipelines import asked_parts
from tasks.graph.names import DEMO_PAPER, SUITE, run_options
from tasks.params.settings import DEFAULT_SCALE
from tasks.report.baselines import NOT_RUN, RowGroup, RunEnd, run_end
from tasks.report.rows_compared import ComparedRow, side_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Columns of a terminal below which cells are without standard errors and intervals without decimals.
NARROW = 72
#: Most lines of a table, and most rows that each have a line on what their difference means.
MOST_ROWS, MOST_MEANINGS = 16, 6
#: Most rows without a result that are named.
MOST_NAMED = 4


def print_run_end(
    root: Path,
    paper: str,
    rows: Sequence[str],
    seeds: Sequence[int],
    *,
    scale: str,
    full: bool,
    began: float = math.inf,
) -> None:
    """Prints the rows that a run was asked for, each beside its baseline; of the demo, its finding.

    Args:
        root: the repository.
        paper, rows, seeds, scale, full: as the run was asked for.
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.

    Raises:
        RecipeError: a row that is not valid.
    """
    from rich.console import Console

    from tasks.commands.finding import print_finding
    from tasks.report.finding import read_finding

    demo = paper in (SUITE, DEMO_PAPER) and not (rows or seeds or full) and scale == DEFAULT_SCALE
    if demo and read_finding(root) is not None:
        print_finding(root)
        return
    found = run_end(root, scale, asked_parts(root, paper, rows, seeds, scale=scale, full=full), began=began)
    console = Console(highlight=False, markup=False)
    for group in found.groups:
        _print_table(console, group)
        if (left := len(group.compared.rows) - MOST_ROWS) > 0:
            console.print(f"{left} more: rewardsmith rows {group.baseline.partition('/')[0]}", style="dim")
    for line in lines(found):
        console.print(line)
    begin = f"Next: {_to_mend(found)}"
    command = next_command(found, run_options(scale, seeds), console.width - len(begin))
    console.print(f"{begin}{command}", soft_wrap=True)


def lines(found: RunEnd) -> list[str]:
    """Returns the lines below the tables: meanings, caveats, rows without results."""
    rows = [row for group in found.groups for row in group.compared.rows]
    compared = [row for row in rows if row.difference is not None]
    said = [line for group in found.groups for line in meanings(group.compared)]
    if len(said) > MOST_MEANINGS:
        said = [_counts(compared)]
    caveats = dict.fromkeys(line for group in found.groups for line in group.compared.caveats)
    reasons: dict[str, list[str]] = {}
    for address, reason in found.without.items():
        reasons.setdefault(reason, []).append(address)
    without = [f"{_some(names)}: {reason}" for reason, names in reasons.items()]
    return [*said, *caveats, *without]


def next_command(found: RunEnd, options: Sequence[str], width: int) -> str:
    """Returns the command that says most next: run what has no result, or compare rows by curves and texts.

    Args:
        found: the rows.
        options: of the run: scale and seeds.
        width: that names of rows fill.
    """
    missing = list(found.failed) or [address for address, reason in found.without.items() if reason == NOT_RUN]
    lacking = [group.baseline for group in found.groups if not group.has_baseline]
    if wanted := missing or lacking:
        paper = wanted[0].partition("/")[0]
        words, names = ["run"], [address for address in wanted if address.startswith(f"{paper}/")]
    elif found.groups:
        group = max(found.groups, key=lambda each: len(each.compared.rows))
        words, names = ["compare"], [row.row.address for row in group.compared.rows]
        if len(names) == 1:
            if found.beside is None:
                return "rewardsmith rows"
            names = [found.beside, *names]
    else:
        return "rewardsmith rows"
    least = 2 if words == ["compare"] else 1
    command = ["rewardsmith", *words, *names[:least], *options]
    for name in names[least:]:
        longer = [*command[: len(command) - len(options)], name, *options]
        if len(shlex.join(longer)) > width:
            break
        command = longer
    return shlex.join(command)


def _to_mend(found: RunEnd) -> str:
    """Returns what comes before the next command: the error and the log of the first failed stage, where one failed."""
    if not found.failed:
        return ""
    return f"mend this error (log: {next(iter(found.failed.values())).log}), then "


def _print_table(console: Console, group: RowGroup) -> None:
    """Prints the rows of a group, without the columns that no row has."""
    wide = console.width >= NARROW
    metric = group.compared.metric.replace("_", " ").replace("/", " ")
    less = f"less {group.baseline.partition('/')[2]}" if group.has_baseline else ""
    lines_ = [_cells(row, group.compared.metric, wide=wide) for row in group.compared.rows[:MOST_ROWS]]
    filled = [place for place in range(6) if place < 2 or any(cells[place] for cells in lines_)]
    headings = [["", metric, less, "kl", "tokens", "alarms"][place] for place in filled]
    cells = [[cells[place] for place in filled] for cells in lines_]
    may_go = [headings.index(name) for name in ("tokens", "kl", "alarms") if name in headings]
    print_fitted(console, partial(_table, group, cells, headings), headings, may_go)


def _table(group: RowGroup, lines_: Sequence[Sequence[str]], headings: Sequence[str], shown: Sequence[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", overflow="fold", max_width=24)
    for place in shown[1:]:
        longest = max(len(cells[place]) for cells in lines_)
        widest = max(longest, 8)
        table.add_column(headings[place], justify="right", min_width=longest, max_width=widest, overflow="fold")
    for row, cells in zip(group.compared.rows, lines_, strict=False):
        style = "bold" if row.row.address == group.baseline else "red" if row.row.alarms else None
        table.add_row(*(cells[place] for place in shown), style=style)
    return table


def _cells(row: ComparedRow, metric: str, *, wide: bool) -> list[str]:
    worlds, rang = len(row.row.runs), len(row.row.alarms)
    watched = rang or row.row.mean("hacking_alarms") is not None
    return [
        row.row.address.partition("/")[2],
        mean_text(row.row, metric, spread=wide),
        difference_text(row, decimals=1 if wide else 0),
        mean_text(row.row, "kl", spread=False),
        mean_text(row.row, "alpaca_tokens", 0, spread=False),
        (f"{rang} of {worlds}" if rang else "none") if watched else "",
    ]


def _counts(compared: Sequence[ComparedRow]) -> str:
    """Returns how many rows are on which side of their baselines."""
    counts: dict[str, int] = {}
    for row in compared:
        side = side_of(row)
        counts[side] = counts.get(side, 0) + 1
    return f"Of {len(compared)} rows beside their baselines: " + ", ".join(f"{n} {side}" for side, n in counts.items())


def _some(names: Sequence[str]) -> str:
    """Returns a few of some names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
