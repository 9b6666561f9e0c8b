"""Settings files: typed, refused by name, and complete at every scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import JudgeError, RecipeError
from tasks.normaliser import calibration_indices
from tasks.params.backbone import BackboneSpec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, overrides, read_settings
from tasks.params.reward_model import NormaliserSpec
from tasks.params.scales import scale_entries
from tasks.params.settings import typed
from tasks.running.loading import load_judge
from tasks.sft import drawn_examples

ROOT = Path(__file__).parents[2]


def settings(address: Address, cls: type) -> object:
    return typed(cls, read_settings(address.under(ROOT)), address)


def of_scale(scale: str, kind: str, name: str) -> Address:
    return scale_entries(ROOT, scale, kind)[name]


def test_a_calibration_set_is_drawn_from_all_pairs_and_the_same_each_time() -> None:
    drawn = calibration_indices(NormaliserSpec(200, drawn=True), 10_000)
    assert drawn == sorted(set(drawn)) == calibration_indices(NormaliserSpec(200, drawn=True), 10_000)
    assert len(drawn) == 200
    assert 4_000 < sum(drawn) / 200 < 6_000
    assert calibration_indices(NormaliserSpec(3), 10) == [0, 1, 2]
    assert calibration_indices(NormaliserSpec(30, drawn=True), 4) == [0, 1, 2, 3]


def test_an_endpoint_judge_is_built_from_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = settings(of_scale("paper", "evaluation", "dialogue"), EvaluationConfig)
    assert isinstance(evaluation, EvaluationConfig)
    names = ("REWARDSMITH_JUDGE_URL", "REWARDSMITH_JUDGE_MODEL", "REWARDSMITH_JUDGE_KEY")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RecipeError, match="'base_url' reads the environment variable REWARDSMITH_JUDGE_URL"):
        load_judge(evaluation.judge, None)
    for name, value in zip(names[:2], ("http://127.0.0.1:8000/v1", "judge-8b"), strict=True):
        monkeypatch.setenv(name, value)
    with pytest.raises(JudgeError, match="REWARDSMITH_JUDGE_KEY is not set"):
        load_judge(evaluation.judge, None)
    monkeypatch.setenv(names[2], "secret")
    judge = load_judge({**(evaluation.judge or {}), "cache_path": None}, None)
    assert judge is not None
    assert judge.name == "judge-8b"
    assert "secret" not in repr(judge)


def test_a_recipes_own_settings_are_numbers_or_multiples_of_the_scales() -> None:
    assert overrides({"kind": "x", "epochs": {"times": 2}, "batch": 8}, {"epochs": 1.5, "batch": 16}) == {
        "epochs": 3.0,
        "batch": 8,
    }
    with pytest.raises(RecipeError, match=r"iterations is 1e\+308 times 40.*too large"):
        overrides({"iterations": {"times": 1e308}}, {"iterations": 40})
    with pytest.raises(RecipeError, match=r"schedule is .* the scale gives cosine"):
        overrides({"schedule": {"times": 2}}, {"schedule": "cosine"})


def test_fine_tuning_learns_from_the_stated_number_of_examples_the_same_ones_each_time() -> None:
    rows = [{"id": str(place)} for place in range(50)]
    drawn = drawn_examples(rows, 7)
    assert drawn == drawn_examples(rows, 7)
    assert len(drawn) == 7
    assert [rows.index(row) for row in drawn] == sorted(rows.index(row) for row in drawn)
    assert drawn_examples(rows, None) == drawn_examples(rows, 50) == drawn_examples(rows, 80) == rows
    with pytest.raises(RecipeError, match="examples is 7, but without 'training' nothing is fine-tuned"):
        BackboneSpec("data", "tokenizer", "evaluation", source="folder", examples=7)
