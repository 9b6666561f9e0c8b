"""Rows of files as people have them: JSON Lines, JSON, CSV and tab-separated text, Parquet and Arrow.

A cell of a table of text is a text: an empty one is no value, and no other one is taken for a number or for a gap.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_core.data.jsonl import DAMAGED, BadRow, Lines, each_key_once, open_bytes, read_lines
from rlhf_core.data.schemas import LONGEST_TEXT
from rlhf_core.errors import DataError

#: Ends of the names of compressed files.
_PACKED = (".gz", ".bz2", ".xz", ".zst")
#: Names of the only key of a JSON object that holds the rows.
_ROWS = ("data", "rows", "train", "instances", "examples")


def read_rows(file: Path) -> Lines:
    """Returns the rows of a file by the end of its name.

    Raises:
        DataError: a file that is missing or cannot be read.
    """
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "no such file"
        inside = sorted(path.name for path in file.glob("*.arrow")) if file.is_dir() else []
        remedy = f"Give its file {file / inside[0]}" if inside else "Give files of preference pairs"
        raise DataError(problem, file=str(file), remedy=f"{remedy}, as in --data pairs.jsonl")
    names = [name for name in file.suffixes if name not in _PACKED]
    return READERS.get(names[-1] if names else "", read_lines)(file)


def _unpacked(file: Path) -> bytes:
    """Returns the bytes of a file, also of a compressed one."""
    try:
        with open_bytes(file) as stream:
            return stream.read()
    except (OSError, *DAMAGED) as error:
        raise DataError(f"cannot be read ({error})", file=str(file), remedy="Copy or download it again") from None


def _text(file: Path) -> str:
    """Returns the text of a file without a byte order mark."""
    try:
        return _unpacked(file).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 ({error})", file=str(file), remedy="Convert it, for example by iconv") from None


def _json(file: Path) -> Lines:
    """Returns the rows of a JSON list, also in an object of one key; or of one object a line, as some files are."""
    text, remedy, twice = _text(file), "It needs one list of objects", list[_Twice]()

    def once(pairs: list[tuple[str, Any]]) -> Any:
        try:
            return each_key_once(pairs)
        except KeyError:
            twice.append(_Twice(pairs))
            return twice[-1]

    try:
        content = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("{") and len(text.strip().splitlines()) > 1:
            return read_lines(file)
        raise DataError(f"not valid JSON ({error})", file=str(file), remedy=remedy) from None
    if type(content) is dict and len(content) == 1 and next(iter(content)) in _ROWS:
        content = next(iter(content.values()))
    if not isinstance(content, list):
        raise DataError("not a list of rows", file=str(file), remedy=remedy)
    lines = Lines(str(file))
    for number, row in enumerate(content, start=1):
        if twice and (key := _key_twice(row)) is not None:
            lines.broken.append(BadRow(number, key, "set twice", row))
        elif isinstance(row, dict):
            lines.rows.append((number, row))
        else:
            lines.broken.append(BadRow(number, "", "not a JSON object", row))
    return lines


class _Twice(dict[str, Any]):
    """An object of JSON that has a key twice."""

    def __init__(self, pairs: list[tuple[str, Any]]):
        super().__init__(pairs)
        self.key = Counter(name for name, _ in pairs).most_common(1)[0][0]


def _key_twice(value: Any) -> str | None:
    """Returns a key that an object in a value of JSON has twice, if any."""
    if isinstance(value, _Twice):
        return value.key
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((key for one in inner if (key := _key_twice(one)) is not None), None)


def _table(separator: str) -> Callable[[Path], Lines]:
    """Returns a reader of tables of text with a line of names."""

    def read(file: Path) -> Lines:
        csv.field_size_limit(8 * LONGEST_TEXT)
        rows = csv.reader(io.StringIO(_text(file), newline=""), delimiter=separator, strict=True)
        lines, number = Lines(str(file)), 0
        try:
            filled = filter(None, rows)
            names = [name or f"column {place}" for place, name in enumerate(next(filled, []), start=1)]
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                remedy = "Give each column a name of its own"
                raise DataError("several columns have this name", file=str(file), field=twice[0], remedy=remedy)
            for number, cells in enumerate(filled, start=1):
                if len(cells) == len(names):
                    lines.rows.append((number, {name: cell or None for name, cell in zip(names, cells, strict=True)}))
                else:
                    lines.broken.append(BadRow(number, "", "not as many cells as columns", cells))
        except csv.Error as error:
            raise DataError(
                f"not readable as a table ({error})", file=str(file), row=number + 1,
                remedy="Save it with quotes around texts, or as JSON Lines",
            ) from None  # fmt: skip
        return lines

    return read


def _parquet(file: Path) -> Lines:
    from pyarrow.parquet import read_table

    return _columns(file, "Parquet", read_table)


def _arrow(file: Path) -> Lines:
    """Returns the rows of an Arrow file as `datasets` writes it."""
    import pyarrow

    return _columns(file, "Arrow", lambda content: pyarrow.ipc.open_stream(content).read_all())


def _columns(file: Path, kind: str, read: Callable[[Any], Any]) -> Lines:
    import pyarrow

    content = pyarrow.BufferReader(_unpacked(file))
    try:
        rows = read(content).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"not readable as {kind} ({error})", file=str(file), remedy="Save it again") from None
    return Lines(str(file), [(number, _plain(row)) for number, row in enumerate(rows, start=1)])


def _plain(value: Any) -> Any:
    """Returns a value as JSON has it: dates, decimal numbers and bytes of UTF-8 as text; of other bytes their number,
    which no text of a pair is."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if not isinstance(value, bytes):
        return str(value)
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"bytes": len(value)}


#: Readers by the end of a file's name, without those of compressed files; others are JSON Lines.
READERS: Mapping[str, Callable[[Path], Lines]] = {
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".json": _json,
    ".csv": _table(","),
    ".tsv": _table("\t"),
}
