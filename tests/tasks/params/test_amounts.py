"""A stage that takes less rows than its settings ask for says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.running.artifacts import fewer_rows, first_rows
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline, changed


def test_a_stage_that_takes_less_than_asked_says_so(
    pipeline: Pipeline, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = tmp_path / "references.yaml"
    asked.write_text(json.dumps(changed(SETTINGS["references"], "prompts", 1000)))
    out = tmp_path / "out"
    pipeline.run("references", out, settings={"scale": asked})
    file = pipeline.result("data") / "prompts.jsonl"
    have = len(pipeline.rows("data", "prompts.jsonl"))
    text = f"prompts is 1000, but {file} has {have} rows; all of them are used"
    assert capsys.readouterr().err.count(f"warning: {text}\n") == 1
    assert json.loads((out / "record" / "record.json").read_text())["fewer_rows"] == [text]
    assert "fewer_rows" not in pipeline.record("references")


def test_the_same_shortage_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    fewer_rows.clear()
    for _ in range(3):
        assert first_rows([1, 2], 5, "checkpoint_prompts", "alpaca.jsonl") == [1, 2]
    assert first_rows([1, 2], 2, "prompts", "a.jsonl") == first_rows([1, 2], None, "prompts", "a.jsonl")
    assert len(fewer_rows) == 1
    assert capsys.readouterr().err.count("warning:") == 1
