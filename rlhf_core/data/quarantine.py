"""Screening of rows at the door: good ones are used, bad ones go to a file with their reason and are counted.

A quarantine file is JSON Lines with one row for each bad row: `file`, `row` (1-based line), `field`, `reason` and
`record`.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.data.jsonl import BadRow, Lines
from rlhf_core.data.schemas import Record, RecordType, unwritable_field
from rlhf_core.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pandera.pandas as pa

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


def find_faults(rows: Sequence[tuple[int, Record]], kind: RecordType) -> list[BadRow]:
    """Returns the rows that break the schema of `kind`, in order, each with its first fault in schema order.

    Args:
        rows: (1-based line, record).
    """
    if not rows:
        return []
    import pandas as pd

    found = ((place, unwritable_field(record)) for place, (_, record) in enumerate(rows))
    faults = {place: [fault] for place, fault in found if fault is not None}
    columns = {name: pd.Series([record.get(name) for _, record in rows], dtype=object) for name in kind.fields}
    frame = pd.DataFrame(columns)
    for schema in (kind.schema, kind.row_schema):
        for place, column, check in _failures(schema, frame.drop(index=list(faults))):
            field, colon, reason = check.partition(": ")
            fault = (field, reason) if colon else (column, str(kind.fields[column](rows[place][1].get(column))))
            faults.setdefault(place, []).append(fault)
    order = {name: position for position, name in enumerate(kind.fields)}
    first = {place: min(of_row, key=lambda fault: order.get(fault[0], len(order))) for place, of_row in faults.items()}
    return [BadRow(rows[place][0], *first[place], rows[place][1]) for place in sorted(first)]


def _failures(schema: pa.DataFrameSchema, frame: pd.DataFrame) -> list[tuple[int, str, str]]:
    """Returns (place, column, name of the check) of each row of a table that breaks its schema."""
    import pandera.errors

    if frame.empty:
        return []
    try:
        schema.validate(frame, lazy=True)
        return []
    except pandera.errors.SchemaErrors as errors:
        found = errors.failure_cases
        return list(zip(found["index"].astype(int), found["column"], found["check"].astype(str), strict=True))


@dataclass
class Screening:
    """Treatment of bad rows.

    Args:
        quarantine_dir: folder for quarantine files, `<file name>.quarantine.jsonl`; one left by an earlier
            run is removed when no row is bad. None refuses any bad row.
        max_bad_share: the largest tolerated share of bad rows, 0 to 1.
    """

    quarantine_dir: str | Path | None = None
    max_bad_share: float = 0.1

    def apply(self, lines: Lines, kind: RecordType) -> tuple[list[Record], QuarantineSummary]:
        """Returns the good rows of a file in order, and the summary of the others.

        Raises:
            DataError: too many bad rows, or no good one; names the first bad rows.
        """
        bad = sorted([*lines.broken, *find_faults(lines.rows, kind)], key=lambda item: item.row)
        total = len(lines.rows) + len(lines.broken)
        path = self._write(lines.file, bad)
        counts = Counter(f"{item.field}: {item.reason}" if item.field else item.reason for item in bad)
        summary = QuarantineSummary(lines.file, total, dict(counts.most_common()), str(path) if path else None)
        if bad:
            _LOG.warning("%s", summary)
        bad_rows = {item.row for item in bad}
        good = [record for row, record in lines.rows if row not in bad_rows]
        if not good or len(bad) > (self.max_bad_share * total if self.quarantine_dir is not None else 0):
            raise self._refusal(lines.file, kind, bad, total, path)
        return good, summary

    def _write(self, file: str, bad: Sequence[BadRow]) -> Path | None:
        if self.quarantine_dir is None:
            return None
        path = Path(self.quarantine_dir) / f"{Path(file).name}.quarantine.jsonl"
        if not bad:
            path.unlink(missing_ok=True)
            return None
        write_quarantine(path, file, bad)
        return path

    def _refusal(self, file: str, kind: RecordType, bad: Sequence[BadRow], total: int, path: Path | None) -> DataError:
        if not bad:
            return DataError("no rows", file=file, remedy=f"It needs {kind.name} records")
        first = bad[0]
        named = "; ".join(
            f"row {item.row}" + (f", field '{item.field}'" if item.field else "") + f": {item.reason}"
            for item in bad[1:_NAMED_ROWS]
        )
        remedy = f"{len(bad)} of {total} rows are bad {kind.name} records" + (f" (next: {named})" if named else "")
        if path:
            remedy += f". All bad rows with reasons are in {path}; correct them, or check that the record type"
            remedy += f" and the field names are right (tolerated share: {self.max_bad_share:g})"
        else:
            remedy += ". Correct them, or name a quarantine folder to go on without them"
        return DataError(first.reason, file=file, row=first.row, field=first.field or None, remedy=remedy)


def write_quarantine(path: Path, file: str, bad: Sequence[BadRow]) -> None:
    """Writes the bad rows of a file into a quarantine file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # ASCII escapes: a quarantined record may hold what UTF-8 cannot.
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.write_text("".join(json.dumps({"file": file, **vars(item)}) + "\n" for item in bad), encoding="ascii")
    partial.replace(path)
