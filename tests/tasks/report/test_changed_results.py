"""Results that changed after their stage had ended: refused by name, never printed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks import tables
from tasks.report.outputs import ResultTree
from tasks.report.page import read_report
from tasks.running.artifacts import read_json, read_jsonl, write_json
from tasks.running.result_digests import check_result, digests_of, exists_or_raise_if_lost
from tests.tasks.report.fixture_results import make_results, sign

BANDIT = Path("segment/policy/bandit/0")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Signed results of one row, its tables among them."""
    made = make_results(tmp_path, (0,), ("bandit",))
    sign(made)
    tables.build(made, "segment", (0,), made / "segment" / "tables")
    return made


def _edit(file: Path, change: Callable[[Any], Any], *, signed: bool = False) -> None:
    content = json.loads(file.read_text())
    file.write_text(json.dumps(change(content)))
    if signed:
        sign(file.parent.parent)


def test_a_number_that_was_changed_is_refused(results: Path) -> None:
    file = results / BANDIT / "result" / "metrics.json"
    _edit(file, lambda metrics: metrics | {"alpaca_wr": 99.0})
    with pytest.raises(DataError, match=r"metrics.json: it changed after its stage had ended.*rewardsmith run"):
        tables.build(results, "segment", (0,), results / "again")


def test_a_printed_cell_that_was_changed_is_refused(results: Path) -> None:
    file = results / "segment" / "tables" / "result" / "tables.json"
    file.write_text(file.read_text().replace('"measured"', '"not run"', 1))
    with pytest.raises(DataError, match=r"tables.json: it changed after its stage had ended"):
        read_report(results)


@pytest.mark.parametrize("name", ["metrics.json", "judgements.jsonl", "checkpoints.jsonl"])
def test_a_file_that_is_gone_is_not_taken_for_one_never_written(results: Path, name: str) -> None:
    (results / BANDIT / "result" / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: its stage wrote this file, and it is not there"):
        tables.build(results, "segment", (0,), results / "again")


def test_a_file_that_was_added_is_refused(results: Path) -> None:
    (results / BANDIT / "result" / "benchmarks.json").write_text("{}")
    with pytest.raises(DataError, match=r"benchmarks.json: its stage did not write this file"):
        read_json(results / BANDIT / "result" / "benchmarks.json")


def test_rows_in_another_order_are_refused(results: Path) -> None:
    file = results / BANDIT / "result" / "judgements.jsonl"
    file.write_text("".join(reversed(file.read_text().splitlines(keepends=True))))
    with pytest.raises(DataError, match=r"judgements.jsonl: it changed"):
        read_jsonl(file)


@pytest.mark.parametrize("field", [{"files": {"metrics.json": "0"}}, {"result_digest": "0" * 64}, {"files": 5}])
def test_a_record_that_contradicts_itself_is_named(results: Path, field: dict[str, Any]) -> None:
    _edit(results / BANDIT / "record" / "record.json", lambda record: record | field)
    with pytest.raises(DataError, match=r"record.json, field 'files'"):
        read_json(results / BANDIT / "result" / "metrics.json")


def test_a_record_with_the_digest_of_all_alone_is_compared_too(results: Path) -> None:
    out = results / BANDIT
    record = {"result_digest": digests_of(out / "result")["result_digest"]}
    write_json(out / "record" / "record.json", record)
    assert read_json(out / "result" / "metrics.json")
    (out / "result" / "history.jsonl").unlink()
    with pytest.raises(DataError, match="it changed after its stage had ended"):
        exists_or_raise_if_lost(out / "result" / "history.jsonl")


def test_weights_are_compared_where_a_model_is_given_away(tmp_path: Path) -> None:
    (tmp_path / "result").mkdir()
    (tmp_path / "record").mkdir()
    (tmp_path / "result" / "model.safetensors").write_bytes(b"weights")
    write_json(tmp_path / "record" / "record.json", digests_of(tmp_path / "result"))
    check_result(tmp_path / "result")
    (tmp_path / "result" / "model.safetensors").write_bytes(b"Weights")
    with pytest.raises(DataError, match=r"model.safetensors: it changed"):
        check_result(tmp_path / "result")


def test_a_result_without_a_record_is_read_as_it_is(results: Path) -> None:
    (results / BANDIT / "record" / "record.json").unlink()
    _edit(results / BANDIT / "result" / "metrics.json", lambda metrics: metrics | {"alpaca_wr": 99.0})
    [output] = ResultTree(results, (0,)).outputs("segment", "policy", "bandit").values()
    assert output.metrics["alpaca_wr"] == 99.0
