from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.commands.explain import explain
from tests.tasks.tiny_pipeline import Pipeline


def test_an_explanation_agrees_with_the_stages_own_examples(pipeline: Pipeline) -> None:
    for row in pipeline.rows("reward_model", "examples.jsonl")[:3]:
        found = explain(pipeline.result("reward_model") / "model", row["prompt"], row["response"])
        assert found["tokens"] == row["tokens"]
        assert [segment[:2] for segment in found["segments"]] == [segment[:2] for segment in row["segments"]]
        values = [value for *_, value in row["segments"]]
        assert [value for *_, value in found["segments"]] == pytest.approx(values, abs=1e-4)
        assert found["rewards"] == pytest.approx(row["rewards"], abs=1e-4)
        assert found["total"] == pytest.approx(sum(values) / len(values), abs=1e-4)


def test_a_model_can_be_read_on_other_segments(pipeline: Pipeline) -> None:
    row = pipeline.rows("reward_model", "examples.jsonl")[0]
    result = pipeline.result("reward_model")
    tokens = explain(result, row["prompt"], row["response"], segmenter={"kind": "token"})
    assert [segment[:2] for segment in tokens["segments"]] == [[i, i + 1] for i in range(len(tokens["tokens"]) - 1)]
    assert tokens["rewards"][-1] is None
    bandit = explain(result, row["prompt"], row["response"], segmenter={"kind": "bandit"})
    assert bandit["segments"] == [[0, len(bandit["tokens"]), pytest.approx(bandit["total"])]]
    named = explain(result, row["prompt"], row["response"], segmenter={"kind": "entropy", "cutoff": "fixed"})
    assert named == explain(result, row["prompt"], row["response"], segmenter={"kind": "entropy", "cutoff": 2.0})


def test_what_is_missing_is_named(pipeline: Pipeline, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a saved reward model"):
        explain(pipeline.result("sft") / "model", "Hello?", "Hi.")
    with pytest.raises(DataError, match="the prompt is empty"):
        explain(pipeline.result("reward_model") / "model", " ", "Hi.")
    with pytest.raises(RecipeError, match="'cutoff' is missing"):
        explain(pipeline.result("reward_model"), "Hello?", "Hi.", segmenter={"kind": "entropy"})
    alone = tmp_path / "model"
    shutil.copytree(pipeline.result("reward_model") / "model", alone)
    with pytest.raises(DataError, match="no record next to the model names its data"):
        explain(alone, "Hello?", "Hi.")
    with pytest.raises(DataError, match="not a result of the sft stage"):
        explain(alone, "Hello?", "Hi.", data=pipeline.result("data"), sft=tmp_path)
    given = explain(alone, "Hello?", "Hi.", data=pipeline.result("data"), sft=pipeline.result("sft"))
    assert given == explain(pipeline.result("reward_model"), "Hello?", "Hi.")


def test_a_model_that_changed_explains_nothing(pipeline: Pipeline, tmp_path: Path) -> None:
    out = Path(shutil.copytree(pipeline.out("reward_model"), tmp_path / "changed"))
    file = out / "result" / "model" / "tokenizer.json"
    file.write_text(file.read_text() + "\n")
    with pytest.raises(DataError, match=r"tokenizer\.json: it changed after its stage had ended"):
        explain(out / "result", "Hello?", "Hi.")
