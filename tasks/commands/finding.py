"""The demo's finding on the terminal: a small table, a line for each row, the strength of the evidence, what next."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.commands.compare import NARROW
from tasks.graph.names import DEMO_NAME
from tasks.params.stages import RUNS, run_settings
from tasks.report.finding import NATS, DemoFinding, finding_cells, read_finding

HEADINGS = (
    "",
    "win rate\nover SFT, %",
    "less plain,\npoints",
    f"at {NATS:g}\nnats",
    "KL at\nend",
    "tokens",
    "alarm\nrang in",
)
#: Of these, the columns on a terminal of less than `NARROW` columns.
KEPT = (0, 1, 2, 6)
NEXT = "add a row to params/demo/rows.yaml and its name to params.yaml, then: rewardsmith run"


def print_finding(root: Path) -> None:
    """Prints the finding; at most 80 columns, on a narrower terminal fewer columns of the table.

    Raises:
        RecipeError: params.yaml sets no demo, or a row of the demo has no result.
    """
    from rich.console import Console
    from rich.table import Table

    if DEMO_NAME not in run_settings(root).demo:
        raise RecipeError(f"{RUNS} sets no demo; `rewardsmith compare ROW ROW` compares the rows that you have")
    found = read_finding(root)
    if found is None:
        raise RecipeError("a row of the demo was not run to its end; run it: rewardsmith run")
    console = Console(highlight=False)
    console.print(f"\n{found.headline}", style="bold")
    table = Table(box=None, pad_edge=False)
    shown = range(len(HEADINGS)) if console.width >= NARROW else KEPT
    for place in shown:
        table.add_column(HEADINGS[place], justify="right" if place else "left", no_wrap=True)
    for row in found.rows:
        cells = finding_cells(row)
        table.add_row(*(cells[place] for place in shown))
    console.print(table)
    for line in lines(found):
        console.print(line)


def lines(found: DemoFinding) -> list[str]:
    """Returns the lines below the table."""
    means = [f"{row.title}: {row.means}" for row in found.rows]
    return [*means, found.cause, f"Strength: {found.strength} {found.check}", f"Next: {NEXT}"]
