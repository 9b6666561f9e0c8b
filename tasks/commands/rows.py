"""The rows of all papers with what was run of each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_core.errors import RecipeError, hint
from tasks.graph.names import papers_of_repository
from tasks.graph.rows import load_rows
from tasks.report.rows_compared import RowRuns, row_runs


def print_row_list(root: Path, scale: str, paper: str | None = None) -> None:
    """Prints a line for each row: name, seeds with a result, title. Warns of pages that cannot be read.

    Args:
        root: the repository.
        scale: whose results are looked for.
        paper: only the rows of this paper or study.

    Raises:
        RecipeError: an unknown paper.
    """
    from rich.console import Console
    from rich.table import Table

    known = papers_of_repository(root)
    if paper is not None and paper not in known:
        raise RecipeError(f"unknown paper '{paper}'{hint(paper, known, more=3)}")
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in ("row", "seeds", "title"):
        table.add_column(heading, overflow="fold")
    console = Console(highlight=False, markup=False)
    left: dict[str, int] = {}
    for each in known if paper is None else [paper]:
        found = [row_runs(root, scale, each, name) for name in load_rows(root, each)]
        shown = found if paper is not None else [row for row in found if row.runs]
        left[each] = len(found) - len(shown)
        for row in shown:
            table.add_row(row.address, seeds_text(row), row.title, style=None if row.runs else "dim")
    if table.row_count:
        console.print(table)
    console.print(_hidden({name: count for name, count in left.items() if count}, scale), style="dim", end="")


def _hidden(left: dict[str, int], scale: str) -> str:
    if not left:
        return ""
    counts = ", ".join(f"{name} {count}" for name, count in left.items())
    return f"Without results at scale {scale}: {counts}. All rows of one: rewardsmith rows PAPER\n"


def seeds_text(row: RowRuns) -> str:
    """Returns the seeds with a result, neighbours as a range: `0 to 2, 100`; `-` without any."""
    return ", ".join(_ranges(sorted(row.runs))) or "-"


def _ranges(seeds: Sequence[int]) -> list[str]:
    runs: list[list[int]] = []
    for seed in seeds:
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
