"""Checks of all settings of a paper at a scale."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.errors import RecipeError
from tasks.graph.rows import load_row, row_addresses
from tasks.graph.scale import Scale


def check_paper(root: Path, paper: str, scale: str) -> None:
    """Refuses what a stage of the paper's rows at the scale would refuse.

    Raises:
        RecipeError: every problem, one a line.
    """
    problems: dict[str, None] = {}
    here = Scale(root, scale)
    for address in row_addresses(root, paper).values():
        try:
            row = load_row(root, paper, address)
            if here.has(row):
                here.row(row, 0)
        except RecipeError as error:
            problems[str(error)] = None
    if problems:
        raise RecipeError("\n".join(problems))
