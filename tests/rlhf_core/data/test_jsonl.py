from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.jsonl import read_jsonl, read_lines, write_jsonl
from rlhf_core.errors import DataError

RECORDS = [{"id": "1", "text": "línea\u2028 one"}, {"id": "2", "text": "日本 🙂"}]


@pytest.mark.parametrize("name", ["d.train.jsonl", "d.train.jsonl.gz"])
def test_what_is_written_is_read(tmp_path: Path, name: str) -> None:
    write_jsonl(tmp_path / name, RECORDS)
    first = (tmp_path / name).read_bytes()
    assert read_jsonl(tmp_path / name) == RECORDS
    write_jsonl(tmp_path / name, RECORDS)
    assert (tmp_path / name).read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [name]


@given(st.lists(st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.none())), min_size=1))
def test_any_text_survives_the_round_trip(rows: list[dict[str, Any]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        try:
            json.dumps(rows, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return
        write_jsonl(Path(folder) / "x.jsonl", rows)
        assert read_jsonl(Path(folder) / "x.jsonl") == rows


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    write_jsonl(path, RECORDS)
    with pytest.raises(DataError, match="row 2"):
        write_jsonl(path, [{"a": 1}, {"a": float("nan")}])
    assert read_jsonl(path) == RECORDS
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": \n', "row 2: broken JSON"),
        (b'{"a": 1}\n\n[1]\n', "row 3: not a JSON object"),
        (b'{"a": 1}\n{"a": "caf\xe9"}\n', "row 2: not UTF-8"),
        ('{"a": 1}\n'.encode("utf-16"), "wrong encoding: this is UTF-16"),
        ('{"a": 1}\n'.encode("utf-16-le"), "wrong encoding"),
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        (gzip.compress(b'{"a": 1}\n', mtime=0), "is gzip-compressed, contrary to its name"),
        (b"[" * 100_000 + b"\n", "row 1: broken JSON"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_jsonl(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be"])
def test_a_wide_encoding_is_named_with_how_to_convert_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes('{"a": "b"}\n'.encode(encoding))
    name = encoding[:6].upper()
    with pytest.raises(DataError, match=f"this is {name}, not UTF-8.*iconv -f {name} -t UTF-8"):
        read_jsonl(path)


def test_a_truncated_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    rows = b"".join(json.dumps({"id": os.urandom(20).hex()}).encode() + b"\n" for _ in range(2000))
    path.write_bytes(gzip.compress(rows)[:-2000])
    with pytest.raises(DataError, match=r"damaged or cut off after row \d+"):
        read_jsonl(path)
    path.write_bytes(b"no gzip")
    with pytest.raises(DataError, match="is not gzip-compressed, contrary to its name"):
        read_jsonl(path)


def test_a_missing_or_unreadable_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_jsonl(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="directory"):
        read_jsonl(tmp_path)
    locked = tmp_path / "locked.jsonl"
    locked.write_text("{}\n")
    locked.chmod(0)
    if not os.access(locked, os.R_OK):
        with pytest.raises(DataError, match="Permission denied"):
            read_jsonl(locked)


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n{"a": 2}\r\n')
    assert read_jsonl(path) == [{"a": 1}, {"a": 2}]


def test_single_broken_lines_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"a": 1}\n\nnonsense\n{"a": 2}')
    lines = read_lines(path)
    assert [number for number, _ in lines.rows] == [1, 4]
    assert [(bad.row, bad.record) for bad in lines.broken] == [(3, "nonsense")]
