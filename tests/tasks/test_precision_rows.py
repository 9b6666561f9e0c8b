"""A backbone with `precision: bf16`: every stage behind it computes in bf16, and a killed one goes on exactly."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tasks.running.artifacts import digest
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline


def with_backbone(pipeline: Pipeline, root: Path, **changed: Any) -> Pipeline:
    """The tiny pipeline's data and tokenizer, and its settings with another backbone."""
    made = Pipeline(root).write({**SETTINGS, "backbone": {**SETTINGS["backbone"], **changed}})
    for name in ("data", "tokenizer"):
        shutil.copytree(pipeline.out(name), made.out(name))
    return made


def dtypes(folder: Path) -> set[str]:
    return {str(value.dtype).removeprefix("torch.") for value in load_file(folder / "model.safetensors").values()}


def test_every_stage_behind_a_bf16_backbone_is_bf16_and_near_float32(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = with_backbone(pipeline, tmp_path, precision="bf16", attention="eager")
    for name in ("sft", "entropies", "reward_model", "normaliser", "ppo"):
        made.run(name)
    for name in ("sft", "reward_model", "ppo"):
        assert dtypes(made.result(name) / "model") == {"bfloat16"}
        assert dtypes(pipeline.result(name) / "model") == {"float32"}
        assert '"attn_implementation": "eager"' in (made.result(name) / "model" / "config.json").read_text()
    for name, metric, tolerance in (
        ("sft", "validation_nll", 0.02),
        ("entropies", "entropy_mean", 0.05),
        ("reward_model", "loss", 0.05),
    ):
        assert made.metrics(name)[metric] == pytest.approx(pipeline.metrics(name)[metric], rel=tolerance), metric
    first = made.rows("ppo", "history.jsonl")[0]
    assert abs(first["kl"]) < 0.5
    assert first["logprob_gap_max"] < 0.3
    values = [value for row in made.rows("ppo", "rollouts.jsonl") for value in row["rewards"] if value]
    assert any(value != float(f"{value:.3g}") for value in values), "rewards have more digits than bf16"

    monkeypatch.chdir(tmp_path)
    for name in ("sft", "ppo"):
        with killed_at_a_checkpoint():
            made.run(name, tmp_path / "killed" / name)
        assert digest(made.run(name, tmp_path / "killed" / name)) == digest(made.result(name))
