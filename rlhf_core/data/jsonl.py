"""JSON Lines on disk: reading with a verdict for every line, writing whole or not at all."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rlhf_core.errors import DataError, invalid_path

_GZIP_MAGIC = b"\x1f\x8b"
_UTF32_MARKS = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, *_UTF32_MARKS)


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Args:
        row: 1-based line in the file (row number for other sources).
        field: the field at fault, empty when the whole line is.
        reason: what is wrong, a few words, the same words for the same fault.
        record: the parsed row, or the raw text of a line that could not be parsed.
        others: further faults of the same row as (field, reason).
    """

    row: int
    field: str
    reason: str
    record: Any
    others: tuple[tuple[str, str], ...] = ()


@dataclass
class Lines:
    """Content of a JSON Lines file: `rows` as (1-based line, record), and the lines that are not records."""

    file: str
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    broken: list[BadRow] = field(default_factory=list)


def read_lines(path: str | Path) -> Lines:
    """Reads a .jsonl or .jsonl.gz file; single broken lines are returned, not raised.

    Blank lines are no rows. Lines end at a line feed only (U+2028 inside a text is text).

    Raises:
        DataError: the path is invalid, or the file is missing, unreadable, empty, not gzip as its name says, damaged,
            or in a wide encoding.
    """
    path = Path(path)
    lines = Lines(str(path))
    number = 0
    try:
        with _open(path) as stream:
            for number, raw in enumerate(stream, start=1):
                if number == 1:
                    raw = _without_mark(raw, path)
                if raw.strip():
                    _add_line(lines, number, raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"the gzip stream is damaged or cut off after row {number} ({error})",
            file=str(path),
            remedy="Copy or download the file again",
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot be read ({error.strerror or error})",
            file=str(path),
            remedy="Check the path and its permissions",
        ) from error
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


def write_jsonl(path: str | Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Writes records, one a line, atomically; a name ending in .gz is compressed without a clock.

    Raises:
        DataError: a value that JSON cannot hold (NaN and infinities included), with its row.
    """
    path = Path(path)
    with atomic_file(path) as raw:
        stream: IO[bytes] | gzip.GzipFile = raw
        if path.suffix == ".gz":
            stream = gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0)
        for number, row in enumerate(rows, start=1):
            try:
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
                stream.write(text.encode("utf-8") + b"\n")
            except (TypeError, ValueError) as error:
                raise DataError(f"cannot be written as JSON ({error})", file=str(path), row=number) from error
        if stream is not raw:
            stream.close()


@contextmanager
def atomic_file(path: Path) -> Iterator[IO[bytes]]:
    """Yields a binary file beside `path` that takes its place when the block ends well and vanishes otherwise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _open(path: Path) -> IO[bytes]:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            "not a regular file", file=str(path), remedy="Name a file; a pipe or device cannot be read twice"
        )
    try:
        stream = path.open("rb")
    except ValueError as error:  # of a NUL character or a lone surrogate in it
        raise invalid_path(path, error) from None
    is_gzip = stream.peek(2)[:2] == _GZIP_MAGIC
    if is_gzip != (path.suffix == ".gz") and stream.peek(1):
        stream.close()
        problem = "is gzip-compressed" if is_gzip else "is not gzip-compressed"
        raise DataError(
            f"{problem}, contrary to its name",
            file=str(path),
            remedy="Name compressed files .jsonl.gz and plain ones .jsonl",
        )
    return io.BufferedReader(gzip.GzipFile(fileobj=stream)) if is_gzip else stream  # type: ignore[arg-type]


def _without_mark(raw: bytes, path: Path) -> bytes:
    """Returns the content without a UTF-8 byte order mark; refuses UTF-16 and UTF-32, whose lines cannot be told by a
    byte."""
    if raw.startswith(_WIDE_MARKS) or b"\0" in raw[:2]:
        encoding = "UTF-32" if raw.startswith(_UTF32_MARKS) or b"\0\0" in raw[:4] else "UTF-16"
        raise DataError(
            f"wrong encoding: this is {encoding}, not UTF-8",
            file=str(path),
            row=1,
            remedy=f"Convert it, for example: iconv -f {encoding} -t UTF-8 FILE",
        )
    return raw.removeprefix(b"\xef\xbb\xbf")


class _Twice(Exception):
    """A key that an object has twice; JSON readers differ in which value they take."""


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        raise _Twice(next(name for name, _ in pairs if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
    return found


def _add_line(lines: Lines, number: int, raw: bytes) -> None:
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        lines.broken.append(BadRow(number, "", "not UTF-8", raw.decode("utf-8", "backslashreplace").rstrip()))
        return
    try:
        record = json.loads(text, object_pairs_hook=_once)
    except _Twice as error:
        lines.broken.append(BadRow(number, str(error), "set twice", text.rstrip()))
        return
    except (ValueError, RecursionError):
        lines.broken.append(BadRow(number, "", "broken JSON", text.rstrip()))
        return
    if isinstance(record, dict):
        lines.rows.append((number, record))
    else:
        lines.broken.append(BadRow(number, "", "not a JSON object", record))
