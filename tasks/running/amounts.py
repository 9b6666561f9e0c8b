"""Rows that a stage takes where its settings ask for more than its data has: printed once, and kept in its record."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

from rlhf_core import distributed

Row = TypeVar("Row")

_NOTES: ContextVar[list[str] | None] = ContextVar("notes", default=None)


@contextmanager
def collect_amount_warnings() -> Iterator[list[str]]:
    """Yields the list that `first_rows` adds to in this block."""
    notes: list[str] = []
    token = _NOTES.set(notes)
    try:
        yield notes
    finally:
        _NOTES.reset(token)


def warn_too_few_rows(asked: int | None, exist: int, field: str, file: Path | str) -> None:
    """Prints and records a warning where a setting asks for more rows than a file has; None asks for all.

    Args:
        asked: value of the setting.
        exist: rows of the file.
        field: name of the setting.
        file: the file.
    """
    if asked is None or asked <= exist:
        return
    text = f"{field} is {asked}, but {file} has {exist} rows; all of them are used"
    notes = _NOTES.get()
    if notes is not None and text in notes:
        return
    if notes is not None:
        notes.append(text)
    if not distributed.rank():
        print(f"warning: {text}", file=sys.stderr, flush=True)


def first_rows(rows: Sequence[Row], asked: int | None, field: str, file: Path | str) -> list[Row]:
    """Returns the first rows of a file, all for None; see `warn_too_few_rows`."""
    warn_too_few_rows(asked, len(rows), field, file)
    return list(rows[:asked])
