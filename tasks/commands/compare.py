"""Rows beside the first of them on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.commands.fitted_table import print_fitted
from tasks.params.metric_names import NAMES
from tasks.report.cells import PERCENT_RANGE, cannot_decide, format_number
from tasks.report.rows_compared import (
    FIRST_CHOICES,
    ONE_WORLD,
    UNDECIDED,
    ComparedRow,
    RowRuns,
    RowsCompared,
    compare_rows,
    side_of,
)

if TYPE_CHECKING:
    from rich.table import Table

#: Width of an interval from which on its bounds have no decimals.
WIDE_INTERVAL = 20
#: Of the other metrics, lines that are shown.
LINES = 10


def print_rows(
    root: Path, scale: str, names: Sequence[str], *, metric: str | None = None, seeds: Sequence[int] = ()
) -> RowsCompared:
    """Prints rows beside the first one: the metric, differences with 95 % intervals, KL, length, alarms and caveats.

    Raises:
        RecipeError: as `compare_rows`.
    """
    from rich.console import Console

    found = compare_rows(root, scale, names, metric=metric, seeds=seeds)
    console = Console(highlight=False, markup=False)
    headings = _headings(found)
    print_fitted(console, partial(_table, found, headings), headings, (6, 5, 4, 3))
    if others := _other_metrics(found):
        titles = ["", *(row.row.title for row in found.rows)]
        last_first = range(len(titles) - 1, 1, -1)
        print_fitted(console, partial(_others_table, found, others[:LINES]), titles, last_first)
        if len(others) > LINES:
            console.print(f"{len(others) - LINES} more: --metric NAME", style="dim")
    if any(len(row.row.runs) > 1 for row in found.rows):
        console.print("± is a standard error, [..] a 95 % interval, both over worlds.", style="dim")
    for row in found.rows:
        for seed, told in row.row.alarms.items():
            console.print(f"ALARM {row.row.address} at seed {seed}: {told}", style="red")
    for line in (*meanings(found), *found.caveats):
        console.print(line)
    return found


def meanings(found: RowsCompared) -> list[str]:
    """Returns a line for each row but the first: what its difference means."""
    return [meaning(row, found.metric) for row in found.rows if row.difference is not None]


def meaning(row: ComparedRow, metric: str) -> str:
    """Returns what a row's difference to the first in a metric means, in one line."""
    assert row.difference is not None
    side = side_of(row)
    if side == ONE_WORLD:
        above = row.difference.effect.estimate > 0
        said = f"{'above' if above else 'below'} in the only world; nothing is known beyond it"
    elif side == UNDECIDED:
        effect = row.difference.effect
        sees = effect.smallest_visible()
        said = "undecided" if sees is None else f"undecided: these worlds see differences above {sees:.1f}"
        if metric in FIRST_CHOICES and sees is not None and sees >= PERCENT_RANGE:
            said = f"undecided: {cannot_decide(effect.worlds)}"
    else:
        said = f"{side}, its interval without 0 (one comparison, not corrected)"
    rang = "; its alarm rang, read its answers first" if row.row.alarms else ""
    return f"{row.row.title}: {said}{rang}."


def _headings(found: RowsCompared) -> list[str]:
    metric = found.metric.replace("_", " ").replace("/", " ")
    return ["", metric, f"less {found.first.title}", "beats it, %", "kl", "tokens", "worlds"]


def _table(found: RowsCompared, headings: Sequence[str], shown: Sequence[int]) -> Table:
    from rich.table import Table

    lines = [_cells(row, found.metric) for row in found.rows]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", max_width=26)
    for place in shown[1:]:
        longest = max(len(cells[place]) for cells in lines)
        widest = max(longest, 8 if place > 2 else 12)
        table.add_column(headings[place], justify="right", min_width=longest, max_width=widest)
    for row, cells in zip(found.rows, lines, strict=True):
        table.add_row(*(cells[place] for place in shown), style="bold" if row.row is found.first else None)
    return table


def _cells(row: ComparedRow, metric: str) -> list[str]:
    beaten = "" if row.beats is None else f"{row.beats:.1f}"
    moved, tokens = mean_text(row.row, "kl", spread=False), mean_text(row.row, "alpaca_tokens", 0, spread=False)
    return [
        row.row.title,
        mean_text(row.row, metric),
        difference_text(row),
        beaten,
        moved,
        tokens,
        str(len(row.row.runs)),
    ]


def difference_text(row: ComparedRow, decimals: int = 1) -> str:
    """Returns a row's difference to the first with its 95 % interval, which one world has not."""
    if row.difference is None:
        return ""
    interval = row.difference.effect.interval()
    if interval is None:
        return f"{row.difference.effect.estimate:+.1f}"
    bounds = decimals if interval.upper - interval.lower < WIDE_INTERVAL else 0
    return f"{interval.estimate:+.{decimals}f} [{interval.lower:+.{bounds}f}, {interval.upper:+.{bounds}f}]"


def mean_text(row: RowRuns, metric: str, decimals: int = 1, *, spread: bool = True) -> str:
    """Returns the mean of a row's metric, with its standard error; empty where no run has it."""
    mean = row.mean(metric)
    if mean is None:
        return ""
    error = f" ±{mean[1]:.{decimals}f}" if spread and mean[1] is not None else ""
    return f"{format_number(mean[0], decimals)}{error}"


def _other_metrics(found: RowsCompared) -> list[str]:
    """Returns other metrics of the answers that every row has and that differ: scores by aspects, true rewards."""
    common = set.intersection(*(set(run.metrics) for row in found.rows for run in row.row.runs.values()))
    known = [name for name in (*sorted(common - {*NAMES}), *NAMES) if name in common]
    shown = [name for name in known if name.startswith("score/") or name in ("true_reward", "average", "kl")]
    apart = [name for name in shown if len({row.row.mean(name) for row in found.rows}) > 1 or len(found.rows) == 1]
    return [name for name in apart if name != found.metric]


def _others_table(found: RowsCompared, metrics: Sequence[str], shown: Sequence[int]) -> Table:
    from rich.table import Table

    rows = [found.rows[place - 1].row for place in shown[1:]]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("", no_wrap=True)
    for row in rows:
        table.add_column(row.title, justify="right", max_width=18)
    for metric in metrics:
        table.add_row(metric, *(mean_text(row, metric, 2) for row in rows))
    return table
