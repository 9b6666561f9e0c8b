"""Results that changed after their stage had ended are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.running.artifacts import read_json, read_jsonl, write_json, write_jsonl
from tasks.running.result_digests import RECORD, check_result, digests_of, exists_or_raise_if_lost


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A signed result of metrics, rows and weights."""
    (tmp_path / "result" / "model").mkdir(parents=True)
    (tmp_path / "record").mkdir()
    write_json(tmp_path / "result" / "metrics.json", {"alpaca_wr": 50.0})
    write_jsonl(tmp_path / "result" / "rows.jsonl", [{"id": "a"}, {"id": "b"}])
    (tmp_path / "result" / "model" / "model.safetensors").write_bytes(b"weights")
    write_json(tmp_path / RECORD, digests_of(tmp_path / "result"))
    return tmp_path


def test_a_sound_result_is_read(out: Path) -> None:
    assert read_json(out / "result" / "metrics.json") == {"alpaca_wr": 50.0}
    assert exists_or_raise_if_lost(out / "result" / "rows.jsonl")
    assert not exists_or_raise_if_lost(out / "result" / "history.jsonl")
    check_result(out / "result")


def test_a_file_that_was_changed_is_refused(out: Path) -> None:
    file = out / "result" / "rows.jsonl"
    write_jsonl(file, [{"id": "b"}, {"id": "a"}])
    with pytest.raises(DataError, match=r"rows.jsonl: it changed after its stage had ended.*rewardsmith run"):
        read_jsonl(file)


def check_result_of(file: Path) -> None:
    check_result(file.parent)


@pytest.mark.parametrize("read", [check_result_of, exists_or_raise_if_lost])
def test_a_file_that_is_gone_is_not_taken_for_one_never_written(out: Path, read: Callable[[Path], Any]) -> None:
    (out / "result" / "rows.jsonl").unlink()
    with pytest.raises(DataError, match=r"rows.jsonl: its stage wrote this file, and it is not there"):
        read(out / "result" / "rows.jsonl")


def test_a_file_that_was_added_is_refused(out: Path) -> None:
    write_json(out / "result" / "benchmarks.json", {})
    with pytest.raises(DataError, match=r"benchmarks.json: its stage did not write this file"):
        read_json(out / "result" / "benchmarks.json")


@pytest.mark.parametrize("text", ["", "5", "[" * 100_000])
def test_a_record_that_cannot_be_read_is_named(out: Path, text: str) -> None:
    (out / RECORD).write_text(text)
    with pytest.raises(DataError, match=r"record.json: not a valid record"):
        read_json(out / "result" / "metrics.json")


def test_weights_are_compared_where_a_whole_result_is(out: Path) -> None:
    (out / "result" / "model" / "model.safetensors").write_bytes(b"Weights")
    check_result(out / "result", weights=False)
    with pytest.raises(DataError, match=r"model.safetensors: it changed"):
        check_result(out / "result")


def test_a_result_without_digests_is_read_as_it_is(out: Path) -> None:
    for record in ({"result_digest": "0" * 64}, None):
        (out / RECORD).unlink() if record is None else write_json(out / RECORD, record)
        write_json(out / "result" / "metrics.json", {"alpaca_wr": 99.0})
        assert read_json(out / "result" / "metrics.json") == {"alpaca_wr": 99.0}
