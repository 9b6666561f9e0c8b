"""The demo's finding on the terminal: a small table, a line for each row, the strength of the evidence, what next."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.errors import RecipeError
from tasks.commands.fitted_table import print_fitted
from tasks.graph.names import DEMO_PAPER, demo_elsewhere
from tasks.params.stages import RUNS, run_settings
from tasks.report.finding import NATS, DemoFinding, finding_cells, read_finding

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = (
    "",
    "win rate\nover SFT, %",
    "less plain,\npoints",
    f"at {NATS:g}\nnats",
    "KL at\nend",
    "tokens",
    "alarm\nrang in",
)
#: Columns that a terminal without room for them lacks, the first one first.
LESS = (5, 4, 3, 6)
NEXT = "an idea of your own, in five minutes: docs/tour.md"


def print_finding(root: Path) -> None:
    """Prints the finding; at most 80 columns, on a narrower terminal fewer columns of the table.

    Raises:
        RecipeError: params.yaml sets no demo, or a row of the demo has no result.
    """
    from rich.console import Console

    if DEMO_PAPER not in run_settings(root).demo:
        raise RecipeError(f"{RUNS} sets no demo; `rewardsmith compare ROW ROW` compares the rows that you have")
    found = read_finding(root)
    if found is None:
        remedy = demo_elsewhere(root) or "; run it: rewardsmith run"
        raise RecipeError(f"a row of the demo was not run to its end here{remedy}")
    console = Console(highlight=False)
    console.print(f"\n{found.headline} {found.beside}".rstrip(), style="bold")
    print_fitted(console, partial(_table, found), HEADINGS, LESS)
    for line in lines(found):
        console.print(line)


def _table(found: DemoFinding, shown: Sequence[int]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for place in shown:
        table.add_column(HEADINGS[place], justify="right" if place else "left", no_wrap=True)
    for row in found.rows:
        cells = finding_cells(row)
        table.add_row(*(cells[place] for place in shown))
    return table


def lines(found: DemoFinding) -> list[str]:
    """Returns the lines below the table."""
    sentences = [f"{row.title}: {row.sentence}" for row in found.rows]
    return [*sentences, found.cause, f"Strength: {found.strength} {found.check}", f"Next: {NEXT}"]
