"""The end of a run on the terminal: rows beside their baselines, what the differences mean, one next command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from tasks.dvc.pipelines import asked_parts
from tasks.graph.names import run_options
from tasks.report.baselines import NOT_RUN, RunEnd, run_end
from tasks.report.comparison import compared_table, meanings
from tasks.report.rows_compared import ComparedRow, side_of
from tasks.report.table import print_tables

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
    """Prints the rows that a run was asked for, each beside its baseline.

    Args:
        root: the repository.
        paper, rows, seeds, scale, full: as the run was asked for.
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.

    Raises:
        RecipeError: a row that is not valid.
    """
    from rich.console import Console

    found = run_end(root, scale, asked_parts(root, paper, rows, seeds, scale=scale, full=full), began=began)
    console = Console(highlight=False, markup=False)
    for group in found.groups:
        print_tables(console, compared_table(group.compared, titles=False, most=MOST_ROWS))
        if (left := len(group.compared.rows) - MOST_ROWS) > 0:
            console.print(f"{left} more: rewardsmith rows {group.baseline.partition('/')[0]}", style="dim")
    for line in _lines(found):
        console.print(line)
    failed = next(iter(found.failed.values()), None)
    begin = f"Next: mend this error (log: {failed.log}), then " if failed else "Next: "
    command = next_command(found, run_options(scale, seeds), console.width - len(begin))
    console.print(f"{begin}{command}", soft_wrap=True)


def _lines(found: RunEnd) -> list[str]:
    """Returns the lines below the tables: meanings, caveats, rows without results."""
    compared = [row for group in found.groups for row in group.compared.rows if row.difference is not None]
    lines = [line for group in found.groups for line in meanings(group.compared)]
    if len(lines) > MOST_MEANINGS:
        lines = [_counts(compared)]
    caveats = dict.fromkeys(line for group in found.groups for line in group.compared.caveats)
    reasons: dict[str, list[str]] = {}
    for address, reason in found.without.items():
        reasons.setdefault(reason, []).append(address)
    return [*lines, *caveats, *(f"{_some(names)}: {reason}" for reason, names in reasons.items())]


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
