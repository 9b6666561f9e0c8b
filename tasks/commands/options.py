"""Arguments and options that several commands share, the class of commands that need a project, and their tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tasks.graph.names import known_scale, refuse_other_folder


class InProject(TyperCommand):
    """A command that needs the repository, or a project of `rewardsmith init`, as its working folder."""

    def invoke(self, ctx: Any) -> Any:
        refuse_other_folder(Path.cwd())
        return super().invoke(ctx)


def refuse_empty_name(name: str | None) -> str | None:
    """Refuses an empty name of a pool or remote, such as an unset variable, which would stand for none."""
    if name is not None and not name.strip():
        raise typer.BadParameter("the name is empty; `prefect work-pool ls` and `dvc remote list` show the names")
    return name


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PAPER | ROW]...",
        help="A paper (segment), some of its rows (bandit, segment/bandit), 'demo-all' (the papers' headline rows) or "
        "'all' (their matrix); by default the demo.",
    ),
]
Full = Annotated[bool, typer.Option("--full", help="Every row and seed of the paper, not its headline rows.")]
Seeds = Annotated[list[int] | None, typer.Option("--seed", metavar="N", help="Only this seed (may be repeated).")]
Scale = Annotated[
    str,
    typer.Option(
        help="Size: testbed (CPU minutes), hh, feedback, reasoning (real data), small (a GPU), paper (8 GPUs).",
        callback=known_scale,
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The DVC remote by which the results of --pool come; DVC's default remote without it.",
        callback=refuse_empty_name,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the stages' own logs.")]


def print_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = (), styles: Sequence[str] = ()
) -> None:
    """Prints texts in columns; broken to the width of a terminal, whole in a file.

    Args:
        headings: of the columns.
        rows: a text for each column.
        right: headings of columns aligned to the right.
        styles: of each row.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for number, row in enumerate(rows):
        table.add_row(*map(Text, row), style=styles[number] if styles else None)
    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        console.width = max(console.width, console.measure(table, options=console.options.update_width(1000)).maximum)
    if table.rows:
        console.print(table)
