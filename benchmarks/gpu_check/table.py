"""The table of the check: a JSON record and Markdown, from the records of its parts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.device import FAILED, MEASURED, Row

COLUMNS = (
    "part", "work", "seconds", "tokens/s", "share of peak", "assumed in forecasts", "share of bandwidth", "memory, GiB",
    "difference",
)  # fmt: skip
NOT_RUN = "not run"


def read_rows(folder: Path, parts: Sequence[str], machine: Mapping[str, Any]) -> dict[str, list[Row]]:
    """Returns the rows of each part that has a record of the same machine, versions and commit."""
    found: dict[str, list[Row]] = {}
    for part in parts:
        path = folder / f"{part}.json"
        record = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if record.get("machine") == machine:
            found[part] = [Row(**row) for row in record["rows"]]
    return found


def write_rows(path: Path, machine: Mapping[str, Any], rows: Sequence[Row]) -> None:
    """Writes the record of one part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _cells(part: str, row: Row) -> list[str]:
    if row.outcome != MEASURED:
        return [part, row.what, f"{row.outcome}: {row.reason}", *[""] * (len(COLUMNS) - 3)]

    def text(value: float | None, form: str) -> str:
        return "" if value is None else format(value, form)

    return [
        part, row.what, text(row.seconds, ".4g"), text(row.tokens_per_second, ",.0f"), text(row.share_of_peak, ".1%"),
        text(row.assumed_share, ".1%"), text(row.share_of_bandwidth, ".1%"), text(row.memory_gib, ".2f"),
        text(row.difference, ".1e"),
    ]  # fmt: skip


def row_line(part: str, row: Row) -> str:
    """Returns a row of the table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in _cells(part, row))} |"


def markdown(machine: Mapping[str, Any], parts: Sequence[str], found: Mapping[str, Sequence[Row]]) -> str:
    """Returns the table; a rehearsal is marked as one, and parts without rows are named."""
    facts = ", ".join(f"{name} {value}" for name, value in machine.items() if name not in ("device", "rehearsal"))
    lines = [f"{machine['device']}, {facts}", ""]
    if machine["rehearsal"]:
        lines[:0] = ["**REHEARSAL on a tiny shape: its numbers say nothing about a GPU.**", ""]
    lines += [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for part in parts:
        rows = found.get(part) or [Row("", NOT_RUN, f"`make gpu-check ONLY={part}` runs it")]
        lines += [row_line(part, row) for row in rows]
    return "\n".join(lines) + "\n"


def failures(found: Mapping[str, Sequence[Row]]) -> list[str]:
    """Returns a message for each row that failed."""
    return [f"{part}: {row.reason}" for part, rows in found.items() for row in rows if row.outcome == FAILED]
