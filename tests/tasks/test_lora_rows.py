"""Rows with `lora`: only adapters are trained, the reference is the model without them, the result is one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from safetensors.torch import load_file

from tasks.running.artifacts import digest
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.tiny_pipeline import SETTINGS, Pipeline

LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0}


def lora_row(folder: Path, row: str, lora: dict[str, Any]) -> dict[str, Path]:
    path = folder / "row.yaml"
    path.write_text(yaml.safe_dump({**SETTINGS[row], "lora": lora}))
    return {"row": path}


@pytest.mark.parametrize(("name", "row"), [("ppo", "segment"), ("dpo", "dpo_row")])
def test_a_lora_row_trains_adapters_and_leaves_a_merged_model(
    pipeline: Pipeline, tmp_path: Path, name: str, row: str
) -> None:
    result = pipeline.run(name, tmp_path / "out", settings=lora_row(tmp_path, row, LORA))
    weights = load_file(result / "model" / "model.safetensors")
    sft = load_file(pipeline.result("sft") / "model" / "model.safetensors")
    assert weights.keys() == sft.keys()
    changed = {weight for weight in sft if not (weights[weight] == sft[weight]).all()}
    assert changed
    assert all("_proj" in weight for weight in changed)
    assert not list((result / "model").glob("adapter*"))
    if name == "ppo":
        first = json.loads((result / "history.jsonl").read_text().splitlines()[0])
        assert first["kl"] == pytest.approx(0, abs=1e-4)
        assert first["logprob_gap_max"] < 1e-4


def test_a_lora_row_that_is_killed_and_started_again_ends_as_one_never_killed(
    pipeline: Pipeline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = lora_row(tmp_path, "segment", LORA)
    plain = digest(pipeline.run("ppo", tmp_path / "a", settings=settings))
    monkeypatch.chdir(tmp_path)
    with killed_at_a_checkpoint():
        pipeline.run("ppo", tmp_path / "b", settings=settings)
    assert digest(pipeline.run("ppo", tmp_path / "b", settings=settings)) == plain
