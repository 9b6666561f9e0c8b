"""The committed RLMEC rows: what is trained for which, and that settings and published tables fit them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables, row_map
from rlhf_core.recipe import parse_recipe
from rlhf_core.supervised.config import TrainingConfig
from tasks.graph.items import Item
from tasks.graph.matrix import build
from tasks.graph.rows import RowSpec, load_rows, raw_row
from tasks.graph.scale import Scale
from tasks.params.backbone import BackboneSpec
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale, imitation_settings, needed_solutions
from tasks.params.questions import SamplesSpec, TeacherSpec
from tasks.params.reward_model import GenerativeModelScale, GenerativeModelSpec
from tasks.params.scales import scale_entries
from tasks.params.settings import typed
from tests import small_repository
from tests.small_repository import set_entry

ROOT = Path(__file__).resolve().parents[2]
ROWS = load_rows(ROOT, "rlmec")
TESTBED = Scale(ROOT, "testbed")


def modules(row: RowSpec) -> dict[str, str]:
    """{module: name} of the stages above a row and its own; the last of each module."""
    return {item.module: item.name for item in TESTBED.row(row, 0)}


def test_rows_are_those_of_the_experiment_matrix() -> None:
    matrix = printed_tables.paper("rlmec").experiment_matrix
    assert len(ROWS) == len(matrix["policy_trainings"]) == 50
    mapped = [m for t in printed_tables.paper("rlmec").tables if t.is_result for m in row_map.mapped_rows(t)]
    policies = {m.recipe.name for m in mapped if m.recipe and m.recipe.kind == "policy"}
    assert policies == set(ROWS)


def test_every_printed_result_has_a_row() -> None:
    for table in printed_tables.paper("rlmec").tables:
        if table.is_result:
            empty = [m.condition for m in row_map.mapped_rows(table) if m.recipe is None]
            assert all(name.startswith("+ FIGA") and name.endswith("math") for name in empty)


def test_models_of_others_are_measured_at_paper_scale_alone_and_not_trained() -> None:
    paper = build(ROOT)
    found: dict[str, Item] = {}
    for folder in (Path("pipelines/paper/rlmec"), Path("pipelines/paper/shared")):
        found |= {item.name: item for item in paper[folder].items() if item.module == "sft"}
    mapped = row_map.mapped_rows(printed_tables.table("rlmec/3"))
    others = [m for m in mapped if m.published.condition in ("LLaMA 2", "Vicuna", "WizardLM")]
    assert len(others) == 12
    for each in others:
        assert each.recipe is not None
        item = found[each.recipe.name]
        spec = typed(BackboneSpec, read_settings(Address(str(item.arguments["spec"])).under(ROOT)), each.recipe.name)
        assert spec.training is None
        assert ("13" in str(spec.source)) is (each.published.extra["model_size"] == "13B")
        assert spec.data == ("questions" if each.part == "qa" else "mathematics")
        assert not TESTBED.has(raw_row(ROOT, "rlmec", each.recipe.name))


def test_a_printed_row_is_one_policy_for_each_task() -> None:
    rows = [m for m in row_map.mapped_rows(printed_tables.table("rlmec/3")) if m.published.condition == "+ RLMEC"]
    assert [(m.part, m.recipe.name if m.recipe else None, m.main) for m in rows] == [
        ("qa", "qa-rlmec", "qa-rlmec"),
        ("math", "math-rlmec", "math-rlmec"),
        ("qa", "qa-13b-rlmec", "qa-13b-rlmec"),
        ("math", "math-13b-rlmec", "math-13b-rlmec"),
    ]
    assert rows[0].condition == "+ RLMEC · 7B · qa"
    assert set(rows[0].published.values) == {"ecqa", "qasc", "obqa", "arc", "qa_avg"}
    assert "gsm8k" in rows[0].elsewhere
    ablation = row_map.mapped_rows(printed_tables.table("rlmec/4"))[2]
    assert ablation.condition == "TLS no, RL yes, IR yes · 13B · qa"
    scaling = row_map.mapped_rows(printed_tables.table("rlmec/7"))
    assert len(scaling) == 8
    assert all(len(m.published.values) == 1 for m in scaling)


@pytest.mark.parametrize("size", ["testbed", "small", "paper"])
@pytest.mark.parametrize("name", sorted(ROWS))
def test_settings_of_every_row_fit(name: str, size: str) -> None:
    row = ROWS[name]
    recipe = parse_recipe(read_settings(row.path.under(ROOT)), row.path)
    scale = typed(
        PolicyScale, read_settings(scale_entries(ROOT, size, "policy")[row.settings].under(ROOT)), row.settings
    )
    if recipe.kind == "supervised":
        _, learned = scale.supervised_config(recipe.optimiser, name)
        assert set(learned.needs) == set(row.solutions)
        return
    config = scale.optimiser_config(recipe.optimiser, name)
    assert set(needed_solutions(recipe)) <= set(row.solutions)
    settings = imitation_settings(scale.imitation, recipe.imitation, name)
    assert (settings is None) is (recipe.imitation is None)
    if config.objective == "rlmec":
        assert config.clip == (0.4 if "13b" in row.backbone else 0.3)


@pytest.mark.parametrize(
    ("name", "batch", "clip"),
    [("qa-rlmec", 128, 0.3), ("math-rlmec", 768, 0.3), ("qa-13b-rlmec", 128, 0.4), ("math-13b-rlmec", 768, 0.4)],
)
def test_the_paper_scale_has_the_papers_numbers(name: str, batch: int, clip: float) -> None:
    paper = Scale(ROOT, "paper")
    items = {item.module: item for item in paper.row(ROWS[name], 0)}

    def stated(module: str, argument: str, cls: type[Any]) -> Any:
        path = str(items[module].arguments[argument])
        return typed(cls, read_settings(Address(path).under(ROOT)), path)

    scale = stated("policy", "scale", PolicyScale)
    recipe = parse_recipe(read_settings(ROWS[name].path.under(ROOT)), name)
    config = scale.optimiser_config(recipe.optimiser, name)
    assert (config.rollout_batch, config.minibatch, config.epochs) == (batch, batch, 1)
    assert (config.actor_lr, config.clip, config.source, config.kl_placement) == (5e-6, clip, "fixed", "none")
    imitation = imitation_settings(scale.imitation, recipe.imitation, name)
    assert imitation is not None
    assert (imitation.gamma, imitation.phi) == (1.0, 0.5)
    samples = stated("samples", "spec", SamplesSpec)
    assert (samples.samples, samples.sampling.temperature, samples.sampling.top_p) == (5, 0.7, 0.95)
    model = stated("generative_reward_model", "scale", GenerativeModelScale)
    assert model.least_accuracy == 0.6
    assert (model.header, model.negative, model.positive) == ("paper", (-0.1, 0.0), (0.0, 0.5))
    trained = model.training_config(stated("generative_reward_model", "spec", GenerativeModelSpec), name)
    assert (trained.learning_rate, trained.epochs, trained.batch) == (5e-6, 1, batch)
    assert stated("teacher", "spec", TeacherSpec).kind == "endpoint"
    backbone = stated("sft", "spec", BackboneSpec)
    assert ("13b" in name) is ("13b" in backbone.source.lower())


@pytest.mark.parametrize(("name", "batch"), [("qa-vanilla-ppo", 128), ("math-13b-vanilla-ppo", 768)])
def test_a_discriminative_reward_model_has_the_papers_numbers(name: str, batch: int) -> None:
    model = next(item for item in Scale(ROOT, "paper").row(ROWS[name], 0) if item.module == "reward_model")
    config = typed(TrainingConfig, read_settings(ROOT / str(model.arguments["scale"])), name)
    assert (config.learning_rate, config.epochs, config.batch) == (5e-6, 1, batch)


def test_a_models_own_training_counts_where_the_scales_is_not_fixed() -> None:
    model = GenerativeModelSpec("t", "b", {"epochs": {"times": 2}})
    training = {"epochs": 1, "batch": 8, "microbatch": 8, "learning_rate": 1e-3}
    found = [
        GenerativeModelScale(training, {}, 8, fixed=fixed).training_config(model, "here").epochs
        for fixed in (False, True)
    ]
    assert found == [2, 1]


@pytest.mark.parametrize("name", sorted(ROWS))
def test_settings_of_every_row_fit_at_paper_scale(name: str) -> None:
    last = Scale(ROOT, "paper").row(ROWS[name], 0)[-1]
    recipe = parse_recipe(read_settings(ROWS[name].path.under(ROOT)), name)
    scale = typed(PolicyScale, read_settings(ROOT / str(last.arguments["scale"])), name)
    if recipe.kind == "supervised":
        training, _ = scale.supervised_config(recipe.optimiser, name)
        assert (training.batch, training.learning_rate) == (768 if name.startswith("math") else 128, 5e-6)
    else:
        assert scale.optimiser_config(recipe.optimiser, name).actor_lr == 5e-6


def test_what_a_row_learns_from_is_made_for_it() -> None:
    assert "teacher" not in modules(ROWS["math-sft"])
    assert "generative_reward_model" not in modules(ROWS["math-rft-td"])
    assert modules(ROWS["math-rlmec"])["generative_reward_model"] == "math"
    assert "reward_model" not in modules(ROWS["math-rlmec"])
    vanilla = modules(ROWS["qa-vanilla-ppo"])
    assert (vanilla["solution_pairs"], vanilla["reward_model"]) == ("rlmec-qa", "qa")


def test_a_reward_model_of_another_size_scores_the_policys_own_samples() -> None:
    items = TESTBED.row(ROWS["math-rlmec-grm-13b"], 0)
    model = next(item for item in items if item.module == "generative_reward_model")
    assert "rlmec-math-13b" in str(model.arguments["sft"])
    assert str(model.arguments["samples"]).endswith("samples/rlmec-math/0/result")
    own = next(item for item in TESTBED.row(ROWS["math-13b-rlmec"], 0) if item.module == "generative_reward_model")
    assert own.out != model.out


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"optimiser": {"kind": "rft", "additional": "generated"}},
            "learns from generated, but names no",
        ),
        (
            {"optimiser": {"kind": "rft", "additional": "generated"}, "rewrites": "mth"},
            "rewrites is .mth., which no page has",
        ),
        ({"optimiser": {"kind": "rft", "additional": "techer"}}, "additional is 'techer'"),
    ],
)
def test_rows_that_lack_what_they_learn_from_are_refused(tmp_path: Path, row: dict[str, object], message: str) -> None:
    root = small_repository.create(tmp_path)
    new = {"title": "x", "kind": "supervised", "backbone": "phi3-mini", **row}
    set_entry(root / "params/segment/rows.yaml", "new", new)
    with pytest.raises(RecipeError, match=message):
        load_rows(root, "segment")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"optimiser": {"kind": "ppo"}}, "pays the tokens of fixed samples, but optimiser 'ppo' samples"),
        ({"optimiser": {"kind": "rlmec"}, "normaliser": "global"}, "leave 'readout', 'normaliser' and 'gives' out"),
        ({"optimiser": {"kind": "rlmec"}, "credit": "last_token"}, "credit 'last_token' takes Sequence"),
        ({"optimiser": {"kind": "rlmec"}, "imitation": 0.5}, "imitation is 0.5; it must be a mapping"),
    ],
)
def test_generative_rewards_fit_fixed_samples_alone(row: dict[str, object], message: str) -> None:
    base = {"title": "x", "kind": "reward", "backbone": "b", "generative_reward_model": "math", "credit": "as_is"}
    with pytest.raises(RecipeError, match=message):
        parse_recipe({**base, **row})


def test_a_row_that_states_updates_leaves_the_scales_epochs() -> None:
    scale = PolicyScale({"epochs": 1, "batch": 32, "microbatch": 32, "learning_rate": 3e-4})
    training, _ = scale.supervised_config({"kind": "rft", "updates": 120}, "row")
    assert (training.epochs, training.updates, training.steps(500)) == (None, 120, 120)
    with pytest.raises(RecipeError, match=r"row: rft: epochs is 1 and updates is 120; state one of them"):
        scale.supervised_config({"kind": "rft", "epochs": 1, "updates": 120}, "row")
