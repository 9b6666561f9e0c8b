"""Settings files: typed, refused by name, and complete at every scale."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import DataError, JudgeError, RecipeError
from rlhf_core.recipe import parse_recipe
from rlhf_core.supervised.config import TrainingConfig
from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.normaliser import calibration_indices
from tasks.params.backbone import BackboneSpec
from tasks.params.data import RealSpec, data_spec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, entries, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.reward_model import NormaliserSpec, RewardModelSpec
from tasks.params.scales import scale_entries
from tasks.params.settings import overrides, typed
from tasks.running.loading import load_judge
from tasks.sft import drawn_examples

ROOT = Path(__file__).parents[2]
ROWS = entries(ROOT, "params/segment", "rows")
REWARD_MODELS = entries(ROOT, "params/segment", "reward_models")


def settings(address: Address, cls: type) -> object:
    return typed(cls, read_settings(address.under(ROOT)), address)


def of_scale(scale: str, kind: str, name: str) -> Address:
    return scale_entries(ROOT, scale, kind)[name]


def test_the_paper_scale_has_the_papers_numbers() -> None:
    dialogue = of_scale("paper", "data", "dialogue").under(ROOT)
    data = data_spec(read_settings(dialogue), dialogue)
    policy = settings(of_scale("paper", "policy", "ppo"), PolicyScale)
    model = settings(of_scale("paper", "stages", "reward_model"), TrainingConfig)
    calibration = settings(of_scale("paper", "stages", "normaliser"), NormaliserSpec)
    assert isinstance(data, RealSpec)
    assert isinstance(policy, PolicyScale)
    assert isinstance(model, TrainingConfig)
    assert isinstance(calibration, NormaliserSpec)
    assert dict(data.limits) == {"prompt": 1728, "total": 2048}
    assert (model.batch, model.epochs, model.learning_rate, model.max_grad_norm) == (128, 1, 1e-6, 1.0)
    ppo = policy.optimiser_config({"kind": "ppo"}, "paper")
    assert (ppo.rollout_batch, ppo.minibatch, ppo.actor_lr, ppo.critic_lr, ppo.kl_coef) == (1024, 128, 5e-7, 9e-6, 0.01)
    assert (policy.prompt_limit, policy.sampling_config("paper").max_new_tokens) == (1024, 1024)
    assert calibration.pairs == 60_000
    assert calibration.drawn


def test_a_calibration_set_is_drawn_from_all_pairs_and_the_same_each_time() -> None:
    drawn = calibration_indices(NormaliserSpec(200, drawn=True), 10_000)
    assert drawn == sorted(set(drawn)) == calibration_indices(NormaliserSpec(200, drawn=True), 10_000)
    assert len(drawn) == 200
    assert 4_000 < sum(drawn) / 200 < 6_000
    assert calibration_indices(NormaliserSpec(3), 10) == [0, 1, 2]
    assert calibration_indices(NormaliserSpec(30, drawn=True), 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("paper", "model", "epochs", "batch", "rate", "clipping", "decay"),
    [
        ("segment", "segment", 1, 128, 1e-6, 1.0, 0.0),  # Segment, Table 8
        ("sentence", "sentence", 1, 256, 3e-6, 1.0, 0.2),  # Sentence, Table 4
        ("par", "standard", 1, 32, 5e-6, 5.0, 0.0),  # PAR, section 8; batches and WARM's shares as released
        ("par", "reg", 1, 24, 5e-6, 5.0, 0.0),
        ("par", "warm-3e-6", 0.873, 24, 3e-6, 5.0, 0.0),
        ("par", "warm-4e-6", 0.727, 24, 4e-6, 5.0, 0.0),
        ("par", "warm-7e-6", 0.294, 32, 7e-6, 5.0, 0.0),
        ("par", "hh-odin", 1, 32, 5e-6, 5.0, 0.0),
        ("par", "llama3-hh-odin", 1, 16, 5e-6, 5.0, 0.0),
        ("par", "llama3-hh-warm-3e-6", 0.986, 16, 3e-6, 5.0, 0.0),
    ],
)
def test_reward_models_are_trained_as_their_paper_says_at_paper_scale(
    paper: str, model: str, epochs: float, batch: int, rate: float, clipping: float, decay: float
) -> None:
    scale = Scale(ROOT, "paper")
    for row in load_rows(ROOT, paper).values():
        for item in scale.row(row, 0) if scale.has(row) else ():
            if (item.module, item.name) == ("reward_model", model):
                training = settings(Address(str(item.arguments["scale"])), TrainingConfig)
                spec = settings(Address(str(item.arguments["spec"])), RewardModelSpec)
                assert isinstance(training, TrainingConfig)
                assert isinstance(spec, RewardModelSpec)
                assert training.learning_rate * spec.learning_rate_share == pytest.approx(rate)
                assert (training.epochs, training.batch, training.max_grad_norm) == (epochs, batch, clipping)
                assert training.weight_decay == decay
                return
    pytest.fail(f"no row of {paper} trains {model}")


@pytest.mark.parametrize(
    ("row", "passes", "value_clip", "cutoff"),
    [
        ("segment", 2, 0.25, "1.75"),
        ("bandit", 2, 0.2, None),
        ("phi31-segment", 2, 0.25, "1.75"),
        ("phi31-token", 2, 0.25, None),
        ("llama3-segment", 1, 0.25, "2.0"),
        ("llama3-token", 1, 0.25, None),
        ("llama3-bandit", 1, 0.2, None),
    ],
)
def test_the_rows_have_table_9s_numbers_at_paper_scale(
    row: str, passes: int, value_clip: float, cutoff: str | None
) -> None:
    at = Scale(ROOT, "paper").row(load_rows(ROOT, "segment")[row], 0)[-1].arguments["scale"]
    policy = settings(Address(str(at)), PolicyScale)
    recipe = parse_recipe(read_settings(ROWS[row].under(ROOT)))
    ppo = policy.optimiser_config(recipe.optimiser, row)
    assert (ppo.epochs, ppo.value_clip) == (1, value_clip)
    assert round(ppo.iterations * ppo.rollout_batch / 60_917) == passes  # prompts of UltraFeedback
    assert (ppo.lr_schedule, ppo.lr_warmup, ppo.lr_final_share) == ("cosine", 0.03, 0.1)
    component = recipe.components[0]
    assert component.readout.segmenter.get("cutoff") == cutoff
    trained = read_settings(REWARD_MODELS[component.reward_model].under(ROOT))
    assert trained["segmenter"].get("cutoff") == cutoff


def test_an_unreadable_settings_file_is_named(tmp_path: Path) -> None:
    for content, message in ((b"a: [", "not valid YAML"), (b"\xff\xfea", "not valid YAML"), (b"- a\n", "a mapping")):
        (tmp_path / "x.yaml").write_bytes(content)
        with pytest.raises(DataError, match=rf"x.yaml.*: .*{message}") as caught:
            read_settings(tmp_path / "x.yaml")
        assert "\n" not in str(caught.value), "a log keeps the line that begins with error:"
    with pytest.raises(DataError, match=r"none.yaml: file does not exist\. Check the path"):
        read_settings(tmp_path / "none.yaml")
    with pytest.raises(DataError, match="cannot be read"):
        read_settings(tmp_path)


def test_a_broken_settings_file_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("a: 1\nb: c: 2\n")
    with pytest.raises(
        DataError, match=r"x\.yaml, line 2: not valid YAML \(mapping values are not allowed in this context\)"
    ):
        read_settings(tmp_path / "x.yaml")


@pytest.mark.parametrize(
    "text",
    ["normaliser: global\ncredit: repeat\nnormaliser: none\n", "a: {x: 1}\nb:\n  normaliser: 1\n  normaliser: 1\n"],
)
def test_a_setting_that_stands_twice_is_refused_with_its_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(DataError, match=r"x\.yaml, line [34], field 'normaliser': is set twice\. Delete one"):
        read_settings(tmp_path / "x.yaml")


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


def test_a_wrong_judge_spec_is_refused() -> None:
    with pytest.raises(RecipeError, match="judge: unknown setting 'url'"):
        load_judge({"kind": "endpoint", "url": "http://127.0.0.1/v1"}, None)
    with pytest.raises(RecipeError, match="unknown judge kind 'gpt'"):
        load_judge({"kind": "gpt"}, None)
    with pytest.raises(RecipeError, match="works on the testbed only"):
        load_judge({"kind": "gold"}, None)


def test_a_recipes_own_settings_are_numbers_or_multiples_of_the_scales() -> None:
    assert overrides({"kind": "x", "epochs": {"times": 2}, "batch": 8}, {"epochs": 1.5, "batch": 16}) == {
        "epochs": 3.0,
        "batch": 8,
    }
    with pytest.raises(RecipeError, match=r"schedule is .* the scale gives cosine"):
        overrides({"schedule": {"times": 2}}, {"schedule": "cosine"})


def test_a_floor_of_a_rate_that_never_falls_is_refused() -> None:
    sizes = dict.fromkeys(("iterations", "rollout_batch", "minibatch", "microbatch", "epochs"), 1)
    scale = PolicyScale({**sizes, "actor_lr": 1e-3, "critic_lr": 1e-3, "lr_final_share": 0.1})
    with pytest.raises(RecipeError, match=r"lr_final_share is 0.1, but lr_schedule is 'constant', which never decays"):
        scale.optimiser_config({"kind": "ppo"}, "row")
    assert scale.optimiser_config({"kind": "ppo", "lr_schedule": "cosine"}, "row").lr_final_share == 0.1


def test_fine_tuning_learns_from_the_stated_number_of_examples_the_same_ones_each_time() -> None:
    rows = [{"id": str(place)} for place in range(50)]
    drawn = drawn_examples(rows, 7)
    assert drawn == drawn_examples(rows, 7)
    assert len(drawn) == 7
    assert [rows.index(row) for row in drawn] == sorted(rows.index(row) for row in drawn)
    assert drawn_examples(rows, None) == drawn_examples(rows, 50) == drawn_examples(rows, 80) == rows
    with pytest.raises(RecipeError, match="examples is 7, but without 'training' nothing is fine-tuned"):
        BackboneSpec("data", "tokenizer", "evaluation", source="folder", examples=7)
