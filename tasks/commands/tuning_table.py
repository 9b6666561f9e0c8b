"""A study's tuning in the terminal: the rows with what was chosen, and the settings for the study's file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from tasks.graph.expected import clock
from tasks.studies.tuned import TunedRow, overrides


def print_tuning(rows: Mapping[str, TunedRow], record: Mapping[str, Any]) -> None:
    """Prints the rows with their trials and flags, then their best settings as a study's file has them."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    seeds = ", ".join(map(str, record["seeds"]))
    table = Table(title=f"{record['study']}, tuned on seeds {seeds}", box=None, pad_edge=False, title_justify="left")
    for column in ("row", "optimiser"):
        table.add_column(column)
    for column in ("trials", "chosen", record["metric"], "at its best", "its SFT", "core time"):
        table.add_column(column, justify="right")
    for row in rows.values():
        table.add_row(
            row.row,
            row.kind,
            str(row.trials),
            "" if row.best is None else str(row.best),
            *(_number(value) for value in (_score(row), row.at_best, row.sft)),
            clock(row.core_seconds),
        )
    console = Console(markup=False)
    words = Measurement.get(console, console.options.update_width(1000), table).maximum
    Console(markup=False, width=max(console.width, words)).print(table, crop=False)
    for row in rows.values():
        for flag in row.flags:
            console.print(f"{row.row}: {flag}", highlight=False, soft_wrap=True)
    if chosen := overrides(rows):
        print(overrides_yaml(chosen), end="")


def _score(row: TunedRow) -> float | None:
    return None if row.best is None else row.scores[row.best]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def overrides_yaml(chosen: Mapping[str, Any]) -> str:
    """Returns chosen settings as the `rows` of a study's file."""
    lines = [
        f"  {name}: {yaml.safe_dump(row, default_flow_style=True, width=1000).strip()}" for name, row in chosen.items()
    ]
    return "\n".join(["rows:", *lines]) + "\n"
