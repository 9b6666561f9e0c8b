"""Settings that ask for more than there is are refused before anything runs, or said by the stage that takes less."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tasks.graph.check import check_rows
from tasks.running.amounts import collect_amount_warnings, first_rows
from tests.tasks.params.conftest import Set
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline, changed

TESTBED = "scales/testbed"
#: (page of the scale testbed, value's place, value, paper, row, what the refusal says)
CASES: list[tuple[str, str, Any, str, str, str]] = [
    ("policy.yaml", "ppo.prompts", 99999, "segment", "segment",
     "policy.yaml:ppo: prompts is 99999, but there are 4096 training prompts (params/scales/testbed/data.yaml:dialogue,"
     " rows.prompts); set prompts to at most 4096"),
    ("policy.yaml", "ppo.checkpoint_prompts", 5000, "segment", "segment",
     "checkpoint_prompts is 5000, but there are 512 prompts in the benchmark 'alpaca'"),
    ("evaluation.yaml", "dialogue.rows", 20, "segment", "segment",
     "there are 20 items of each benchmark (params/scales/testbed/evaluation.yaml:dialogue, rows)"),
    ("policy.yaml", "ppo.checkpoints", 999, "segment", "segment", "checkpoints is 999, but there are"),
    ("policy.yaml", "ppo.checkpoint_every", 999, "segment", "segment", "checkpoint_every is 999, but there are"),
    ("stages.yaml", "references.prompts", 99999, "par", "par", "references: prompts is 99999, but there are"),
    ("stages.yaml", "normaliser.pairs", 99999, "segment", "segment", "99999, but there are 6000 training pairs"),
    ("stages.yaml", "pool.prompts", 99999, "sentence", "best-of-n-response", "prompts is 99999, but there are"),
    ("stages.yaml", "selection.prompts", 99999, "alarm", "qa-alarm", "prompts is 99999, but there are"),
    ("backbones.yaml", "phi3-mini.examples", 99999, "segment", "segment", "examples is 99999, but there are"),
    ("evaluation.yaml", "dialogue.pair_rows", 99999, "segment", "segment", "pair_rows is 99999, but there are 512"),
]  # fmt: skip


@pytest.mark.parametrize(("page", "place", "value", "paper", "row", "message"), CASES)
def test_more_than_there_is_is_refused_when_planning(
    tree: Path, set_value: Set, page: str, place: str, value: Any, paper: str, row: str, message: str
) -> None:
    set_value(f"{TESTBED}/{page}", place, value)
    found = "\n".join(check_rows(tree, paper, [row], "testbed"))
    assert message in found


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
    with collect_amount_warnings() as notes:
        for _ in range(3):
            assert first_rows([1, 2], 5, "checkpoint_prompts", "alpaca.jsonl") == [1, 2]
        assert first_rows([1, 2], 2, "prompts", "a.jsonl") == first_rows([1, 2], None, "prompts", "a.jsonl")
    assert len(notes) == 1
    assert capsys.readouterr().err.count("warning:") == 1
