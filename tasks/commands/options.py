"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from tasks.graph.names import known_scale


def refuse_empty_pool(name: str | None) -> str | None:
    """Refuses an empty name of a work pool, such as an unset variable, which would run everything here."""
    if name is not None and not name.strip():
        raise typer.BadParameter("the name is empty; `prefect work-pool ls` shows the pools")
    return name


def refuse_empty_remote(name: str | None) -> str | None:
    """Refuses an empty name of a remote, such as an unset variable, which would share nothing."""
    if name is not None and not name.strip():
        raise typer.BadParameter("the name is empty; `dvc remote list` shows the remotes")
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
        callback=refuse_empty_remote,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show the stages' own logs.")]
