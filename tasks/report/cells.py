"""Measured numbers and cells in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.printed_rows import ELSEWHERE

MARKS = {"confirmed": "✓", "contradicted": "✗", "undecided": "·"}


def format_number(value: float, decimals: int) -> str:
    """Returns a measured number with its column's decimals; -0.0 is 0.0."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def cell_text(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns a measured cell in short: mean, significance star, standard error and direction mark."""
    if cell["status"] == ELSEWHERE:
        return ""
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    lost = f" ({unparsable_text(cell)})" if cell.get("unparsable") else ""
    if cell["status"] != "measured":
        return f"{cell['status']}{lost}"
    if cell["outcome"] is not None:
        return f"{cell['outcome']}{mark}{lost}"
    text = format_number(cell["mean"], decimals) + ("*" if cell["significant"] else "")
    if cell["se"] is not None:
        text += f" ± {format_number(cell['se'], decimals)}"
    return f"{text}{mark}{lost}"


def unparsable_text(cell: Mapping[str, Any]) -> str:
    """Returns the number of prompts without a verdict of the judge, in words; '' if all have one."""
    return f"{cell['unparsable']} unparsable" if cell.get("unparsable") else ""
