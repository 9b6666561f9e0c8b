"""Terminal tables with as many whole columns as the terminal has room for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: Columns of a terminal that no table needs.
UNLIMITED = 1000


def print_fitted(
    console: Console, table_of: Callable[[Sequence[int]], Table], headings: Sequence[str], less: Sequence[int]
) -> None:
    """Prints a table without the columns that do not fit, and names those in a line.

    Args:
        table_of: returns the table of some columns, by their places.
        headings: of all columns.
        less: places of the columns that may be left out, the first one first.
    """
    shown, left_out = list(range(len(headings))), list(less)
    table = table_of(shown)
    unlimited = console.options.update_width(UNLIMITED)
    while left_out and console.measure(table, options=unlimited).maximum > console.width:
        shown.remove(left_out.pop(0))
        table = table_of(shown)
    console.print(table)
    names = [" ".join(heading.partition(",")[0].split()) for heading in headings]  # without units
    if missing := [name for place, name in enumerate(names) if place not in shown]:
        console.print(f"not shown at this width: {', '.join(missing)}", style="dim")
