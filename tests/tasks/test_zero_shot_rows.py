"""ALARM with a holistic reward that is asked for, not trained: selection and gated policies of a tiny causal model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.rewards.zero_shot import ZeroShotSettings, load_zero_shot
from tasks.graph.check import check_rows
from tasks.running.artifacts import read_json
from tests.small_repository import set_entry
from tests.tasks.alarm_run import HOLISTIC, ROW, Run
from tests.tiny_causal import save_causal

ROOT = Path(__file__).resolve().parents[2]
ROWS = {"qa-zero-shot": {**ROW, "components": [HOLISTIC, {"aspect": "length"}]}}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_causal(tmp_path_factory.mktemp("causal"))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Run:
    asked = {"zero_shot": {"zero_shot": {"model": str(model), "batch": 5}}}
    made = Run(tmp_path_factory.mktemp("alarm"), {**asked, **ROWS, **_selecting(["length"])}, ("length",), {})
    made.up_to_the_selection()
    made.policy("qa-zero-shot")
    return made


def _selecting(aspects: list[str]) -> dict[str, object]:
    return {"selection": {"title": "Selection", "backbone": "alarm-qa", "holistic": "holistic", "aspects": aspects}}


def test_nothing_is_trained_and_the_result_names_the_model(run: Run, model: Path) -> None:
    folder = run.result("alarm/reward_model/holistic/0")
    assert not (folder / "model").exists()
    assert read_json(folder / "zero_shot.json")["settings"]["model"] == str(model)
    assert 0 <= run.read("alarm/reward_model/holistic/0", "metrics.json")["accuracy"] <= 1


def test_the_selection_reads_what_the_model_says_of_each_answer(run: Run, model: Path) -> None:
    asked = load_zero_shot(ZeroShotSettings(str(model)))
    for row in run.read("alarm/selection/qa/0", "answers.jsonl"):
        (found,) = asked.rewards([row["prompt"]], [row["sampled"]["text"]])
        assert row["sampled"]["holistic"] == pytest.approx(found, abs=1e-5)


def test_a_policy_is_paid_the_normalised_reward_on_its_last_token(run: Run, model: Path) -> None:
    statistics = run.read("alarm/selection/qa/0", "selection.json")["holistic"]
    asked = load_zero_shot(ZeroShotSettings(str(model)))
    rollouts = run.read("alarm/policy/qa-zero-shot/0", "rollouts.jsonl")
    assert rollouts
    for rollout in rollouts:
        (raw,) = asked.rewards([rollout["prompt"]], [rollout["response"]])
        paid = rollout["breakdown"]["holistic"]
        assert paid[-1] == pytest.approx(5 * (raw - statistics["mean"]) / statistics["std"], abs=1e-3)
        assert not any(paid[:-1])


def test_what_needs_a_trained_model_is_refused_before_anything_runs(tmp_path: Path, model: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    page = tmp_path / "params" / "scales" / "testbed" / "stages.yaml"
    set_entry(page, "reward_model-par", {"zero_shot": {"model": str(model)}})
    found = "\n".join(check_rows(tmp_path, "par", ["vanilla"], "testbed"))
    assert "stages.yaml:reward_model-par: stage 'references' reads a reward model, which needs trained weights" in found
    assert "but zero_shot reward model 'standard' has none" in found
    set_entry(page, "reward_model-par", {"zero_shot": {"model": str(model), "reed": "head"}})
    found = "\n".join(check_rows(tmp_path, "par", ["vanilla"], "testbed"))
    assert "unknown setting 'zero_shot.reed'" in found


def test_a_normaliser_of_pairs_does_not_fit(run: Run) -> None:
    page = run.settings("qa-fitted")
    page.write_text(run.settings("qa-zero-shot").read_text().replace("pure_samples", "sequence"))
    with pytest.raises(RecipeError, match="normaliser 'sequence' is fitted to a trained reward model"):
        run.policy("qa-fitted")
