"""ALARM with a holistic reward that is asked for, not trained: selection and gated policies of a tiny causal model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.rewards.zero_shot import ZeroShotSettings, load_zero_shot
from tasks.graph.check import check_rows
from tests.small_repository import set_entry
from tests.tasks.golden_runs import SETTINGS, SHARED, SharedRuns
from tests.tiny_causal import save_causal

ROOT = Path(__file__).resolve().parents[2]
ROW = {**SETTINGS["row/qa-alarm"], "title": "Zero-shot", "components": [SHARED["holistic"], {"aspect": "length"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("causal"))


def rows(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "result" / file).read_text().splitlines()]


def test_selection_and_policy_read_what_the_model_says(golden: SharedRuns, model: Path, tmp_path: Path) -> None:
    golden.made("long", "fit-holistic-qa")
    asked = load_zero_shot(ZeroShotSettings(str(model)))
    holistic, selection, policy = (tmp_path / name for name in ("holistic", "selection", "policy"))
    golden.run("model-holistic-qa", scale={"zero_shot": {"model": str(model), "batch": 5}}, out=holistic)
    assert not (holistic / "result" / "model").exists()
    read = {"reward_model": holistic / "result", "aspect_model": None}
    spec = {**SETTINGS["selection/qa"], "aspects": ["length"]}
    golden.run("selection-qa", spec=spec, aspect=golden.settings("aspects/length"), **read, out=selection)
    for row in rows(selection, "answers.jsonl"):
        assert row["sampled"]["holistic"] == pytest.approx(
            asked.rewards([row["prompt"]], [row["sampled"]["text"]])[0], abs=1e-5
        )
    statistics = json.loads((selection / "result" / "selection.json").read_text())["holistic"]
    read |= {"holistic": holistic / "result", "selection": selection / "result"}
    golden.run("qa-alarm", row=ROW, **read, out=policy)
    for rollout in rows(policy, "rollouts.jsonl"):
        (raw,) = asked.rewards([rollout["prompt"]], [rollout["response"]])
        *before, last = rollout["breakdown"]["holistic"]
        assert last == pytest.approx(5 * (raw - statistics["mean"]) / statistics["std"], abs=1e-3)
        assert not any(before)


def test_what_needs_a_trained_model_is_refused_before_anything_runs(tmp_path: Path, model: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    page = tmp_path / "params" / "scales" / "testbed" / "stages.yaml"
    set_entry(page, "reward_model-par", {"zero_shot": {"model": str(model)}})
    found = "\n".join(check_rows(tmp_path, "par", ["vanilla"], "testbed"))
    assert "stage references-par-standard-0: its stage is 'references', which needs trained weights, but" in found
    assert "zero_shot, params/scales/testbed/stages.yaml:reward_model-par" in found
