"""Rows that a stage takes where its settings ask for more than its data has: printed once, and kept in its record."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from rlhf_core import distributed

Row = TypeVar("Row")

#: The warnings of this process's present stage, for its record.
fewer_rows: list[str] = []


def warn_too_few_rows(asked: int | None, exist: int, field: str, file: Path | str) -> None:
    """Prints and records a warning where a setting (`field`) asks for more rows than a file has; None asks for all."""
    text = f"{field} is {asked}, but {file} has {exist} rows; all of them are used"
    if asked is None or asked <= exist or text in fewer_rows:
        return
    fewer_rows.append(text)
    if not distributed.rank():
        print(f"warning: {text}", file=sys.stderr, flush=True)


def first_rows(rows: Sequence[Row], asked: int | None, field: str, file: Path | str) -> list[Row]:
    """Returns the first rows of a file, all for None; see `warn_too_few_rows`."""
    warn_too_few_rows(asked, len(rows), field, file)
    return list(rows[:asked])
