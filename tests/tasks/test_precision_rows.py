"""A backbone with `precision: bf16`: every stage behind it computes in bf16."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.tasks.golden_runs import SETTINGS, GoldenRuns, SharedRuns


def with_backbone(golden: SharedRuns, root: Path, **changed: Any) -> GoldenRuns:
    """Golden data and tokenizer, and golden settings with another backbone."""
    made = GoldenRuns(root).write({"backbone": {**SETTINGS["backbone"], **changed}})
    return made.copy(golden, "dialogue", "dialogue-tokenizer")


def dtypes(folder: Path) -> set[str]:
    return {str(value.dtype).removeprefix("torch.") for value in load_file(folder / "model.safetensors").values()}


def test_every_stage_behind_a_bf16_backbone_is_bf16_and_near_float32(golden: SharedRuns, tmp_path: Path) -> None:
    made = with_backbone(golden, tmp_path, precision="bf16", attention="eager")
    for name in ("sft", "entropies", "model-segment", "fit-segment", "segment"):
        made.run(name)
    for name in ("sft", "model-segment", "segment"):
        assert dtypes(made.result(name) / "model") == {"bfloat16"}
        assert dtypes(golden.result(name) / "model") == {"float32"}
        assert '"attn_implementation": "eager"' in (made.result(name) / "model" / "config.json").read_text()
    for name, metric, tolerance in (
        ("sft", "validation_nll", 0.02),
        ("entropies", "entropy_mean", 0.05),
        ("model-segment", "loss", 0.05),
    ):
        assert made.read(name)[metric] == pytest.approx(golden.read(name)[metric], rel=tolerance), metric
    first = made.read("segment", "history.jsonl")[0]
    assert abs(first["kl"]) < 0.5
    assert first["logprob_gap_max"] < 0.3
    values = [value for row in made.read("segment", "rollouts.jsonl") for value in row["rewards"] if value]
    assert any(value != float(f"{value:.3g}") for value in values), "rewards have more digits than bf16"
