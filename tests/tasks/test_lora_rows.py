"""Rows with `lora`: only adapters are trained, the reference is the model without them, the result is one model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tasks.running.artifacts import digest
from tests.tasks.golden_runs import SETTINGS, SharedRuns
from tests.tasks.killing import killed_at_a_checkpoint

LORA = {"rank": 2, "alpha": 4.0, "dropout": 0.0}


def lora_row(name: str) -> dict[str, Any]:
    return {**SETTINGS[f"row/{name}"], "lora": LORA}


@pytest.mark.parametrize("name", ["segment", "dpo"])
def test_a_lora_row_trains_adapters_and_leaves_a_merged_model(golden: SharedRuns, tmp_path: Path, name: str) -> None:
    result = golden.run(name, row=lora_row(name), out=tmp_path / "out")
    weights = load_file(result / "model" / "model.safetensors")
    sft = load_file(golden.result("sft") / "model" / "model.safetensors")
    assert weights.keys() == sft.keys()
    changed = {weight for weight in sft if not (weights[weight] == sft[weight]).all()}
    assert changed
    assert all("_proj" in weight for weight in changed)
    assert not list((result / "model").glob("adapter*"))
    if name == "segment":
        first = json.loads((result / "history.jsonl").read_text().splitlines()[0])
        assert first["kl"] == pytest.approx(0, abs=1e-4)
        assert first["logprob_gap_max"] < 1e-4


def test_a_lora_row_that_is_killed_and_started_again_ends_as_one_never_killed(
    golden: SharedRuns, tmp_path: Path
) -> None:
    row = lora_row("segment")
    plain = digest(golden.run("segment", row=row, out=tmp_path / "a"))
    with killed_at_a_checkpoint():
        golden.run("segment", row=row, out=tmp_path / "b")
    assert digest(golden.run("segment", row=row, out=tmp_path / "b")) == plain
