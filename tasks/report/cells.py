"""Measured numbers and cells in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.report.printed_rows import ELSEWHERE

MARKS = {"confirmed": "✓", "contradicted": "✗", "equivalent": "=", "undecided": "·"}

#: Range of a percentage: worlds that see only larger effects decide nothing. No primary column has a larger range.
PERCENT_RANGE = 100.0


def format_number(value: float, decimals: int) -> str:
    """Returns a measured number with its column's decimals; -0.0 is 0.0."""
    text = f"{value:.{decimals}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def cell_text(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns a measured cell in short: mean, standard error, and of a compared primary cell its verdict."""
    if cell["status"] == ELSEWHERE:
        return ""
    lost = f" ({text})" if (text := unparsable_text(cell)) else ""
    if cell["status"] != "measured":
        return f"{status_text(cell)}{lost}"
    if cell["outcome"] is not None:
        return f"{cell['outcome']}{lost}"
    text = format_number(cell["mean"], decimals)
    if cell.get("partial"):
        lost = f" ({cell['partial']}){lost}"
    if cell["se"] is not None:
        text += f" ± {format_number(cell['se'], decimals)}"
    verdict = "".join(f"; {line}" for line in verdict_lines(cell, decimals))
    mark = f" {MARKS[cell['verdict']]}" if cell["verdict"] else ""
    return f"{text}{verdict}{mark}{lost}"


def effect_text(cell: Mapping[str, Any], decimals: int) -> str:
    """Returns the difference to the main row with its 95 % interval, such as '-7.0 [-9.1, -4.9]'."""
    text = _signed(cell["difference"], decimals)
    if cell["interval"] is not None:
        text += " [{}, {}]".format(*(_signed(bound, decimals) for bound in cell["interval"]))
    return text


def verdict_lines(cell: Mapping[str, Any], decimals: int) -> list[str]:
    """Returns a compared primary cell's effect, verdict, and the smallest effect that its worlds can see; empty for
    other cells."""
    if cell["word"] is None:
        return []
    sees = cell["smallest_visible"]
    decides = sees is not None and sees < PERCENT_RANGE
    smallest = format_number(sees, decimals) if decides else ""
    word = cell["word"]
    if word == "sees only effects above":
        word = f"{word} {smallest}" if decides else cannot_decide(cell["worlds"])
    elif cell["reason"]:
        word = f"{word}: {cell['reason']}"
    elif smallest:
        word = f"{word} (sees {smallest})"
    return [effect_text(cell, decimals), word, *([cell["missing"]] if cell["missing"] else [])]


def cannot_decide(worlds: int) -> str:
    """Returns that so few worlds see no effect that a percentage can have."""
    return f"{worlds} worlds cannot decide it"


def _signed(value: float, decimals: int) -> str:
    text = format_number(value, decimals)
    return text if text.startswith("-") else f"+{text}"


def unparsable_text(cell: Mapping[str, Any]) -> str:
    """Returns the numbers of prompts without a verdict of the judge and with one in one order only, in words; '' if all
    have what they need."""
    counts = [(cell.get("unparsable"), "unparsable"), (cell.get("one_sided"), "one-sided")]
    return ", ".join(f"{count} {word}" for count, word in counts if count)


def status_text(cell: Mapping[str, Any]) -> str:
    """Returns the status of a cell without a number, and its reason where that is known."""
    return f"{cell['status']}: {cell['why']}" if cell.get("why") else str(cell["status"])
