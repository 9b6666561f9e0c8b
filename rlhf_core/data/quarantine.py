"""Quarantine: good rows are used, bad rows go to a file with their reason, and the run reports their number.

A quarantine file is JSON Lines with one row for each bad row: `file`, `row` (1-based line), `field`,
`reason`, `record`, and `others` when the row has further faults.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandera.errors

from rlhf_core.data.jsonl import BadRow, Lines, atomic_file
from rlhf_core.data.schemas import Record, RecordType, frame_of, unwritable_field
from rlhf_core.errors import DataError

_LOG = logging.getLogger(__name__)
_NAMED_ROWS = 3


@dataclass(frozen=True)
class QuarantineSummary:
    """Number of a file's rows that were quarantined, by reason.

    Args:
        file: the file or source.
        total: rows read, good and bad.
        reasons: {"field: reason": rows}, most frequent first; each bad row counts once, by its first fault.
        quarantine_file: where the bad rows are, None when there are none.
    """

    file: str
    total: int
    reasons: dict[str, int]
    quarantine_file: str | None = None

    @property
    def quarantined(self) -> int:
        return sum(self.reasons.values())

    def __str__(self) -> str:
        counts = ", ".join(f"{reason} {count}" for reason, count in self.reasons.items())
        return f"{self.file}: {self.quarantined} of {self.total} rows quarantined" + (f": {counts}" if counts else "")


@dataclass(frozen=True)
class Screened:
    """Good rows in file order, and the summary of the others."""

    rows: list[Record]
    summary: QuarantineSummary


def find_faults(rows: Sequence[tuple[int, Record]], kind: RecordType) -> list[BadRow]:
    """Returns the rows that break the schema of `kind`, in order, each with its first fault in schema order.

    Args:
        rows: (1-based line, record).
    """
    if not rows:
        return []
    names = list(dict.fromkeys([*kind.schema.columns, *kind.unique_by]))
    frame = frame_of([record for _, record in rows], names)
    try:
        kind.schema.validate(frame, lazy=True)
    except pandera.errors.SchemaErrors as errors:
        failures = errors.failure_cases
    else:
        failures = None
    faults: dict[int, list[tuple[str, str]]] = {}
    for at, (_, record) in enumerate(rows):
        unwritable = unwritable_field(record)
        if unwritable is not None and unwritable[0] not in kind.schema.columns:
            faults[at] = [unwritable]
    found = () if failures is None else zip(failures["index"], failures["column"], failures["check"], strict=True)
    for index, column, check in found:
        if index is None:
            raise RuntimeError(f"a check of the {kind.name} schema failed to run: {check}")
        # Checks over whole rows name their field in front of the reason.
        field, colon, reason = check.partition(": ")
        fault = (field, reason) if colon else (column, check)
        known = faults.setdefault(int(index), [])
        if fault not in known:
            known.append(fault)
    order = {name: position for position, name in enumerate(names)}
    bad = []
    for index in sorted(faults):
        (field, reason), *others = sorted(faults[index], key=lambda fault: order.get(fault[0], len(order)))
        bad.append(BadRow(rows[index][0], field, reason, rows[index][1], tuple(others)))
    return bad


def screen(
    lines: Lines,
    kind: RecordType,
    *,
    quarantine_dir: str | Path | None,
    max_bad_share: float = 0.1,
) -> Screened:
    """Splits rows into good ones (returned) and bad ones (written to `quarantine_dir`).

    The quarantine file is `<file name>.quarantine.jsonl`, written whole; one left by an earlier run is
    removed when no row is bad.

    Args:
        lines: rows and broken lines of one file.
        kind: the record type they must satisfy.
        quarantine_dir: folder for the quarantine file; None refuses any bad row.
        max_bad_share: the largest tolerated share of bad rows, 0 to 1.

    Raises:
        DataError: too many bad rows, or no good one; names the first bad rows.
    """
    bad = sorted([*lines.broken, *find_faults(lines.rows, kind)], key=lambda item: item.row)
    total = len(lines.rows) + len(lines.broken)
    path = _write(lines.file, bad, quarantine_dir)
    counts = Counter(f"{item.field}: {item.reason}" if item.field else item.reason for item in bad)
    summary = QuarantineSummary(lines.file, total, dict(counts.most_common()), str(path) if path else None)
    if bad:
        _LOG.warning("%s", summary)
    bad_rows = {item.row for item in bad}
    good = [record for row, record in lines.rows if row not in bad_rows]
    allowed = max_bad_share * total if quarantine_dir is not None else 0
    if not good or len(bad) > allowed:
        _refuse(lines.file, kind, bad, total, path, max_bad_share)
    return Screened(good, summary)


def _write(file: str, bad: Sequence[BadRow], quarantine_dir: str | Path | None) -> Path | None:
    if quarantine_dir is None:
        return None
    path = Path(quarantine_dir) / f"{Path(file).name}.quarantine.jsonl"
    if not bad:
        path.unlink(missing_ok=True)
        return None
    with atomic_file(path) as stream:
        for item in bad:
            row: dict[str, Any] = {"file": file, "row": item.row, "field": item.field, "reason": item.reason}
            row["record"] = item.record
            if item.others:
                row["others"] = [list(other) for other in item.others]
            # ASCII escapes: a quarantined record may hold what UTF-8 cannot.
            stream.write(json.dumps(row).encode("ascii") + b"\n")
    return path


def _refuse(
    file: str, kind: RecordType, bad: Sequence[BadRow], total: int, path: Path | None, max_bad_share: float
) -> None:
    if not bad:
        raise DataError("no rows", file=file, remedy=f"It needs {kind.name} records")
    first = bad[0]
    named = "; ".join(
        f"row {item.row}" + (f", field '{item.field}'" if item.field else "") + f": {item.reason}"
        for item in bad[1:_NAMED_ROWS]
    )
    remedy = f"{len(bad)} of {total} rows are bad {kind.name} records"
    remedy += f" (next: {named})" if named else ""
    if path:
        remedy += f". All bad rows with reasons are in {path}; correct them, or check that the record type"
        remedy += f" and the field names are right (tolerated share: {max_bad_share:g})"
    else:
        remedy += ". Correct them, or name a quarantine folder to go on without them"
    raise DataError(first.reason, file=file, row=first.row, field=first.field or None, remedy=remedy)
