"""Rows on the terminal: the list of all rows, and the rows at the end of a run beside their baselines."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tasks.commands.options import print_table
from tasks.dvc.pipelines import asked_parts
from tasks.graph.names import known_paper, papers_of_repository, run_options
from tasks.graph.rows import load_rows
from tasks.report.baselines import NOT_RUN, RunEnd, run_end
from tasks.report.comparison import compared_table, meanings
from tasks.report.rows_compared import ComparedRow, RowRuns, row_runs, side_of
from tasks.report.table import print_tables

#: Most lines of a table, and most rows that each have a line on what their difference means.
MOST_ROWS, MOST_MEANINGS = 16, 6
#: Most rows without a result that are named.
MOST_NAMED = 4


def print_row_list(root: Path, scale: str, paper: str | None = None) -> None:
    """Prints a line for each row: name, seeds with a result, title. Warns of pages that cannot be read.

    Args:
        root: the repository.
        scale: whose results are looked for.
        paper: only the rows of this paper or study; else those with a result.

    Raises:
        RecipeError: an unknown paper.
    """
    every: list[RowRuns] = []
    left: list[str] = []
    for each in papers_of_repository(root) if paper is None else [known_paper(root, paper)]:
        found = [row_runs(root, scale, each, name) for name in load_rows(root, each)]
        shown = [row for row in found if row.runs or paper is not None]
        left += [f"{each} {len(found) - len(shown)}"] if len(found) > len(shown) else []
        every += shown
    lines = [(row.address, seeds_text(row), row.title) for row in every]
    print_table(("row", "seeds", "title"), lines, styles=["" if row.runs else "dim" for row in every])
    if left:
        print(f"Without results at scale {scale}: {', '.join(left)}. All rows of one: rewardsmith rows PAPER")


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
        word, least, names = "run", 1, [address for address in wanted if address.startswith(f"{paper}/")]
    else:
        rows = max((group.compared.rows for group in found.groups), key=len, default=())
        word, least, names = "compare", 2, [row.row.address for row in rows]
        if len(names) == 1 and found.beside is not None:
            names = [found.beside, *names]
        if len(names) < 2:
            return "rewardsmith rows"
    commands = [shlex.join(["rewardsmith", word, *names[:count], *options]) for count in range(least, len(names) + 1)]
    return next((command for command in reversed(commands) if len(command) <= width), commands[0])


def _counts(compared: Sequence[ComparedRow]) -> str:
    """Returns how many rows are on which side of their baselines."""
    counts = Counter(map(side_of, compared))
    return f"Of {len(compared)} rows beside their baselines: " + ", ".join(f"{n} {side}" for side, n in counts.items())


def _some(names: Sequence[str]) -> str:
    """Returns a few of some names, and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
