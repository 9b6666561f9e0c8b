"""A response explained by its rewards, and the credit that several rows give to the tokens of the same solutions."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rlhf_core.errors import DataError
from tasks.command_line import commands
from tasks.commands.explain import explain, shared_credit
from tasks.running.artifacts import write_jsonl
from tests.tasks.golden_runs import SharedRuns


def test_an_explanation_agrees_with_the_stages_own_examples(golden: SharedRuns) -> None:
    for row in golden.read("model-segment", "examples.jsonl")[:3]:
        found = explain(golden.result("model-segment") / "model", row["prompt"], row["response"])
        assert found["tokens"] == row["tokens"]
        assert [segment[:2] for segment in found["segments"]] == [segment[:2] for segment in row["segments"]]
        values = [value for *_, value in row["segments"]]
        assert [value for *_, value in found["segments"]] == pytest.approx(values, abs=1e-4)
        assert found["rewards"] == pytest.approx(row["rewards"], abs=1e-4)
        assert found["total"] == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_what_is_missing_is_named(golden: SharedRuns, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a saved reward model"):
        explain(golden.result("sft") / "model", "Hello?", "Hi.")
    with pytest.raises(DataError, match="the prompt is empty"):
        explain(golden.result("model-segment") / "model", " ", "Hi.")
    alone = tmp_path / "model"
    shutil.copytree(golden.result("model-segment") / "model", alone)
    with pytest.raises(DataError, match="no record next to the model names its data"):
        explain(alone, "Hello?", "Hi.")


def kept(results: Path, name: str, **credit: Any) -> None:
    """A row that kept solutions by id; of `unclipped`, the credit before clipping too."""
    folder = results / "rlmec" / "policy" / name / "0" / "result"
    folder.mkdir(parents=True)
    base = {
        "prompt": "What is 1 + 1?",
        "response": "It is 3",
        "tokens": ["It is ", "3"],
        "mistaken": [False, True],
        "rewrite": "It is 2",
    }
    write_jsonl(folder / "credit.jsonl", [{"id": key, **base, **given} for key, given in credit.items()])


def test_solutions_that_all_rows_kept_are_compared(tmp_path: Path) -> None:
    kept(tmp_path, "math-rlmec", a={"credit": [0.0, -0.1], "unclipped": [0.4, -0.4]}, b={"credit": [0.0, 0.0]})
    kept(tmp_path, "math-vanilla-ppo", a={"credit": [-0.7, -0.7]})
    (solution,) = shared_credit(tmp_path, ["math-rlmec", "math-vanilla-ppo"], 0)
    assert solution["credit"] == {"math-rlmec": [0.4, -0.4], "math-vanilla-ppo": [-0.7, -0.7]}
    assert solution["rewrite"] == "It is 2"


def test_rows_without_credit_or_of_other_tasks_are_refused(tmp_path: Path) -> None:
    kept(tmp_path, "math-rlmec", a={"credit": [0.0, -0.1]})
    kept(tmp_path, "qa-rlmec", z={"credit": [0.0, -0.1]})
    with pytest.raises(DataError, match=r"row 'math-sft' \(seed 0\) has no credit of solutions"):
        shared_credit(tmp_path, ["math-rlmec", "math-sft"], 0)
    with pytest.raises(DataError, match="the rows math-rlmec, qa-rlmec share no solution"):
        shared_credit(tmp_path, ["math-rlmec", "qa-rlmec"], 0)


def test_explain_prints_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path / "results" / "testbed", "math-rlmec", a={"credit": [0.0, -0.1]})
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(commands, ["explain", "--rows", "math-rlmec"])
    assert shown.exit_code == 0, shown.output
    assert "rewrite: It is 2" in shown.output
    assert "math-rlmec, -0.10 to +0.10" in shown.output
    assert CliRunner().invoke(commands, ["explain", "--prompt", "x"]).exit_code != 0
