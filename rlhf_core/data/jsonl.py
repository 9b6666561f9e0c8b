"""JSON Lines on disk, read with a verdict for every line."""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import json
import lzma
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, cast

from rlhf_core.errors import DataError, invalid_path


def _zstd(path: Path) -> BinaryIO:
    import pyarrow

    return cast("BinaryIO", io.BufferedReader(pyarrow.input_stream(str(path), compression="zstd")))


#: Openers of compressed files by a file's first bytes.
_UNPACKERS: Mapping[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": _zstd,
}
#: Errors of a compressed file that is damaged or cut off; others are of class OSError, without a number.
DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError)


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file to read its bytes, unpacked where they are compressed by gzip, bzip2, xz or zstd."""
    with path.open("rb") as stream:
        start = stream.read(6)
    unpack = next((one for magic, one in _UNPACKERS.items() if start.startswith(magic)), None)
    return path.open("rb") if unpack is None else cast("BinaryIO", unpack(path))


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


def read_lines(path: str | Path, most: int | None = None) -> Lines:
    """Reads a file of UTF-8, compressed or not, or its first lines; single broken lines are returned, not raised.

    Blank lines are no rows. Lines end at a line feed only (U+2028 inside a text is text).

    Raises:
        DataError: the path is invalid, or the file is missing, unreadable, empty or damaged.
    """
    path = Path(path)
    lines, number, remedy = Lines(str(path)), 0, "Check the path and its permissions"
    if path.exists() and not path.is_file():
        raise DataError("not a regular file", file=str(path), remedy="Name a file of JSON Lines")
    try:
        with open_bytes(path) as stream:
            for number, raw in enumerate(islice(stream, most), start=1):
                if raw.strip():
                    _add_line(lines, number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)
    except (OSError, *DAMAGED) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise DataError(f"cannot be read ({error.strerror or error})", file=str(path), remedy=remedy) from error
        problem, remedy = f"the compressed file is damaged or cut off after row {number} ({error})", "Download it again"
        raise DataError(problem, file=str(path), remedy=remedy) from error
    except ValueError as error:  # of a NUL character or a lone surrogate in the path
        raise invalid_path(path, error) from None
    if not lines.rows and not lines.broken:
        raise DataError("the file is empty", file=str(path), remedy="It needs one JSON object a line")
    return lines


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Returns all records of a file, strictly.

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


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns an object of JSON (as `object_pairs_hook`).

    Raises:
        KeyError: a key that it has twice; JSON readers differ in which value they take.
    """
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
        record = json.loads(text, object_pairs_hook=each_key_once)
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
