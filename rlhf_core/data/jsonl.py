"""JSON Lines on disk, read with a verdict for every line."""

from __future__ import annotations

import codecs
import gzip
import json
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, invalid_path


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Args:
        row: 1-based line in the file (row number for other sources).
        field: the field at fault, empty when the whole line is.
        reason: what is wrong, a few words, the same words for the same fault.
        record: the parsed row, or the raw text of a line that could not be parsed.
    """

    row: int
    field: str
    reason: str
    record: Any


@dataclass
class Lines:
    """Content of a JSON Lines file: `rows` as (1-based line, record), and the lines that are not records."""

    file: str
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    broken: list[BadRow] = field(default_factory=list)


def read_lines(path: str | Path) -> Lines:
    """Reads a UTF-8 .jsonl or .jsonl.gz file; single broken lines are returned, not raised.

    Blank lines are no rows. Lines end at a line feed only (U+2028 inside a text is text).

    Raises:
        DataError: the path is invalid, or the file is missing, unreadable, empty or a damaged gzip stream.
    """
    path = Path(path)
    lines, number, remedy = Lines(str(path)), 0, "Check the path and its permissions"
    if path.exists() and not path.is_file():
        raise DataError("not a regular file", file=str(path), remedy="Name a file of JSON Lines")
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                if raw.strip():
                    _add_line(lines, number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        problem, remedy = f"the gzip stream is damaged or cut off after row {number} ({error})", "Download it again"
        raise DataError(problem, file=str(path), remedy=remedy) from error
    except OSError as error:
        raise DataError(f"cannot be read ({error.strerror or error})", file=str(path), remedy=remedy) from error
    except ValueError as error:  # of a NUL character or a lone surrogate in the path
        raise invalid_path(path, error) from None
    if not lines.rows and not lines.broken:
        raise DataError("the file is empty", file=str(path), remedy="It needs one JSON object a line")
    return lines


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Returns all records of a .jsonl or .jsonl.gz file, strictly.

    Raises:
        DataError: as `read_lines`, and for the first line that is no JSON object, with its row.
    """
    lines = read_lines(path)
    if lines.broken:
        first = lines.broken[0]
        raise DataError(
            first.reason, file=lines.file, row=first.row, remedy="Each line must be one JSON object in UTF-8"
        )
    return [record for _, record in lines.rows]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object; of a key that it has twice, JSON readers differ in which value they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise KeyError(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _add_line(lines: Lines, number: int, raw: bytes) -> None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        lines.broken.append(BadRow(number, "", "not UTF-8", raw.decode("utf-8", "backslashreplace").rstrip()))
        return
    try:
        record = json.loads(text, object_pairs_hook=_once)
    except KeyError as error:
        lines.broken.append(BadRow(number, str(error.args[0]), "set twice", text.rstrip()))
        return
    except (ValueError, RecursionError):
        lines.broken.append(BadRow(number, "", "broken JSON", text.rstrip()))
        return
    if isinstance(record, dict):
        lines.rows.append((number, record))
    else:
        lines.broken.append(BadRow(number, "", "not a JSON object", record))
