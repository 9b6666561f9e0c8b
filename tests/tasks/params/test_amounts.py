"""A stage that takes less rows than its settings ask for says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.running.artifacts import fewer_rows, first_rows
from tests.tasks.golden_runs import SharedRuns, changed


def test_a_stage_that_takes_less_than_asked_says_so(
    golden: SharedRuns, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    golden.run("references-segment", scale=changed("references", "prompts", 1000), out=out)
    file = golden.result("dialogue") / "prompts.jsonl"
    have = len(golden.read("dialogue", "prompts.jsonl"))
    text = f"prompts is 1000, but {file} has {have} rows; all of them are used"
    assert capsys.readouterr().err.count(f"warning: {text}\n") == 1
    assert json.loads((out / "record" / "record.json").read_text())["fewer_rows"] == [text]
    assert "fewer_rows" not in golden.record("references-segment")


def test_the_same_shortage_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    fewer_rows.clear()
    for _ in range(3):
        assert first_rows([1, 2], 5, "checkpoint_prompts", "alpaca.jsonl") == [1, 2]
    assert first_rows([1, 2], 2, "prompts", "a.jsonl") == first_rows([1, 2], None, "prompts", "a.jsonl")
    assert len(fewer_rows) == 1
    assert capsys.readouterr().err.count("warning:") == 1
