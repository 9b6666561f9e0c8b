"""Rows on the terminal: the list of all rows, and the rows of a run beside their baselines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from tasks.commands.options import print_table
from tasks.dvc.pipelines import asked_parts
from tasks.graph.names import known_paper, papers_of_repository
from tasks.graph.rows import row_addresses
from tasks.report.baselines import run_end
from tasks.report.comparison import RowRuns, compared_table, meanings, row_runs
from tasks.report.table import print_tables

#: Most rows of a table, and most rows without a result that are named.
MOST_ROWS, MOST_NAMED = 16, 4


def print_row_list(root: Path, scale: str, paper: str | None = None) -> None:
    """Prints a line for each row: name, seeds with a result, title.

    Args:
        root: the repository.
        scale: whose results are looked for.
        paper: only the rows of this paper or study; else those with a result.

    Raises:
        RecipeError: an unknown paper.
    """
    names = papers_of_repository(root) if paper is None else [known_paper(root, paper)]
    rows = [row_runs(root, scale, each, name) for each in names for name in sorted(row_addresses(root, each))]
    shown = [row for row in rows if row.runs or paper is not None]
    lines = [(row.address, seeds_text(row), row.title) for row in shown]
    print_table(("row", "seeds", "title"), lines, styles=["" if row.runs else "dim" for row in shown])
    if left := len(rows) - len(shown):
        print(f"{left} rows without results at scale {scale}; those of a paper: rewardsmith rows PAPER")


def seeds_text(row: RowRuns) -> str:
    """Returns the seeds with a result, neighbours as a range: `0 to 2, 100`; `-` without any."""
    first = [seed for seed in sorted(row.runs) if seed - 1 not in row.runs]
    last = [seed for seed in sorted(row.runs) if seed + 1 not in row.runs]
    return ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in zip(first, last, strict=True)) or "-"


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
    """Prints the rows that a run was asked for, each beside its baseline, and why others have no result.

    Args:
        root: the repository.
        paper, rows, seeds, scale, full: as the run was asked for.
        began: time of the run, in seconds since the epoch; only stages that have failed since then are failed.

    Raises:
        RecipeError: a row that is not valid.
    """
    from rich.console import Console

    groups, without = run_end(root, scale, asked_parts(root, paper, rows, seeds, scale=scale, full=full), began=began)
    console = Console(highlight=False, markup=False)
    for group in groups:
        print_tables(console, compared_table(group, titles=False, most=MOST_ROWS))
        for line in (*meanings(group)[:MOST_ROWS], *group.caveats):
            console.print(line)
        if (left := len(group.rows) - MOST_ROWS) > 0:
            console.print(f"{left} more: rewardsmith rows {group.rows[0].paper}", style="dim")
    by_reason: dict[str, list[str]] = {}
    for address, reason in without.items():
        by_reason.setdefault(reason, []).append(address)
    for reason, names in by_reason.items():
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        console.print(f"{', '.join(names[:MOST_NAMED])}{more}: {reason}", soft_wrap=True)
