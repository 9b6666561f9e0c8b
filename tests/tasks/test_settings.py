"""Settings of stages: what is drawn and merged from them, contradictions that are refused, and names of metrics."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.solutions import LearntSolutions
from rlhf_core.errors import JudgeError, RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.recipe import parse_recipe
from rlhf_core.typed import typed
from tasks.normaliser import calibration_indices
from tasks.params.backbone import BackboneSpec
from tasks.params.evaluation import METRIC_NAMES, PARTS, EvaluationConfig, is_metric, needed_parts
from tasks.params.pages import Address, overrides, read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.reward_model import GenerativeModelScale, GenerativeModelSpec, NormaliserSpec
from tasks.params.scales import scale_entries
from tasks.running.loading import load_judge
from tasks.sft import drawn_examples
from tests.tasks.golden_runs import SETTINGS, SHARED

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


# --- policies


def scale_of(**changes: Any) -> PolicyScale:
    return PolicyScale(**{**SETTINGS["policy/par_ppo"], **changes})


def test_a_row_may_state_multiples_of_the_scales_settings() -> None:
    stated = {"kind": "ppo", "iterations": {"times": 2}, "critic_lr": {"times": 0.5}}
    config = scale_of().optimiser_config(stated, "row")
    assert (config.iterations, config.critic_lr) == (6, 1.0e-3)


@pytest.mark.parametrize(
    ("optimiser", "message"),
    [
        ({"iterations": {"times": "two"}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"iterations": {"times": 2, "plus": 1}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"iterations": {"plus": 1}}, r"row: ppo: iterations is .*\{times: 2\}"),
        ({"lam": {"times": 2}}, "the scale gives None"),
        ({"replay": 3}, r"replay 3 with 3 iterations: .* nothing would ever be trained"),
    ],
)
def test_a_wrong_optimiser_is_refused(optimiser: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        scale_of().optimiser_config({"kind": "ppo", **optimiser}, "row")


def test_a_row_that_states_updates_leaves_the_scales_epochs() -> None:
    scale = PolicyScale({**SHARED["supervised"], "batch": 32, "microbatch": 32})
    training, _ = scale.supervised_config({"kind": "rft", "updates": 120}, "row")
    assert (training.epochs, training.updates, training.steps(500)) == (None, 120, 120)
    with pytest.raises(RecipeError, match=r"row: rft: epochs is 1 and updates is 120; state one of them"):
        scale.supervised_config({"kind": "rft", "epochs": 1, "updates": 120}, "row")


def test_a_models_own_training_counts_where_the_scales_is_not_fixed() -> None:
    model = GenerativeModelSpec("t", "b", {"epochs": {"times": 2}})
    scales = [GenerativeModelScale(dict(SHARED["supervised"]), {}, 8, fixed=fixed) for fixed in (False, True)]
    assert [scale.training_config(model, "here").epochs for scale in scales] == [2, 1]


def test_solutions_are_chosen_where_they_are_fixed_and_their_rewrites_known() -> None:
    chosen = PolicyScale(SHARED["without_critic"], solutions=LearntSolutions(failed=False))
    row = {k: v for k, v in SETTINGS["row/math-without-tls"].items() if k not in ("imitation", "rewrites")}
    with pytest.raises(RecipeError, match=r"solutions.failed is false, but the row reads no generative reward model"):
        reward_training(parse_recipe(row), chosen, "row")
    vanilla = replace(chosen, sampling=Sampling(8), solutions=LearntSolutions(most_right=2))
    with pytest.raises(RecipeError, match="solutions chooses among fixed samples, but source is 'on_policy'"):
        reward_training(parse_recipe(SETTINGS["row/vanilla-ppo"]), vanilla, "row")


# --- names of metrics


@pytest.mark.parametrize("stage", ["policy", "sft", "reward_bench", "best_of_n", "second_judge"])
def test_every_metric_that_a_last_stage_wrote_is_known(stage: str) -> None:
    runs = json.loads((ROOT / "tests" / "tasks" / "golden" / f"{stage}.json").read_text(encoding="utf-8"))[
        "runs"
    ].values()
    written = {name.partition("/")[2] for run in runs for name in run["numbers"] if name.startswith("metrics/")}
    assert len(written) > 1
    assert not [name for name in written if not is_metric(name)]


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("win_rate_vs_sft", [("alpaca",)]),
        ("peak_win_rate_vs_sft_p", [("alpaca",)]),
        ("ood_win_rate_vs_sft", [("ood",)]),
        ("arena_wr", [("arena",)]),
        ("peak_mtbench", [("mtbench",)]),
        ("mmlu", [("choices", "tasks")]),
        ("average", [("choices", "tasks"), ("arithmetic", "tasks")]),
        ("mbpp_plus", [("code",)]),
        ("kl", []),
    ],
)
def test_a_metric_needs_the_parts_of_an_evaluation_that_measure_it(name: str, parts: list[tuple[str, ...]]) -> None:
    assert needed_parts(name) == parts


def test_parts_that_metrics_need_are_those_of_evaluations() -> None:
    assert {part for name in METRIC_NAMES for group in needed_parts(name) for part in group} == {*PARTS}
