"""Recipes: every row file parses, mistakes are named, contradictions are refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.recipe import parse_recipe, referenced_models, reward_models, useless_shaping
from rlhf_core.segmentation import build_segmenter
from tasks.params.pages import Address, entries, read_settings

ROOT = Path(__file__).parents[2]
ROWS = entries(ROOT, "params/segment", "rows").values()
MODELS = entries(ROOT, "params/segment", "reward_models")
ROW: dict[str, Any] = {
    "title": "Segment",
    "kind": "reward",
    "backbone": "phi3-mini",
    "reward_model": "segment",
    "readout": {"segmenter": {"kind": "entropy", "cutoff": 1.75}, "read": "value"},
    "normaliser": "location_aware",
    "credit": "even_split",
    "optimiser": {"kind": "ppo", "value_clip": 0.25},
}


def changed(**changes: Any) -> dict[str, Any]:
    """The row with changes; None removes a field."""
    row = copy.deepcopy(ROW) | changes
    return {name: value for name, value in row.items() if value is not None}


def test_there_are_27_rows() -> None:
    assert len(ROWS) == 27


@pytest.mark.parametrize("address", ROWS, ids=lambda address: address.name)
def test_every_row_parses(address: Address) -> None:
    recipe = parse_recipe(read_settings(address.under(ROOT)), address)
    dense = False
    for component in recipe.components:
        assert component.readout is not None
        segmenter = dict(component.readout.segmenter)
        build_segmenter({**segmenter, "cutoff": 1.0} if "cutoff" in segmenter else segmenter)
        trained = read_settings(MODELS[str(component.reward_model)].under(ROOT))
        assert trained["backbone"] == recipe.backbone
        dense = component.readout.read == "value"
        if component.normaliser == "location_aware":
            assert trained["segmenter"] == segmenter
    if recipe.kind == "reward":
        assert recipe.optimiser["value_clip"] == (0.25 if dense else 0.2)


def test_a_component_at_the_top_level_is_the_component_list() -> None:
    names = ("reward_model", "readout", "normaliser", "credit")
    listed = changed(**dict.fromkeys(names)) | {"components": [{name: ROW[name] for name in names}]}
    assert parse_recipe(ROW) == parse_recipe(listed)
    assert parse_recipe(ROW).components[0].name == "segment"
    assert parse_recipe(ROW).clamp == 10.0
    with pytest.raises(RecipeError, match="not both"):
        parse_recipe(ROW | {"components": []})


def test_a_row_takes_back_what_its_scale_states_for_optimisers_with_a_critic() -> None:
    rloo = {"kind": "rloo", "critic_lr": None, "critic_warmup": None}
    assert parse_recipe(ROW | {"optimiser": rloo}).optimiser == rloo
    with pytest.raises(RecipeError, match=r"optimiser\.critic_warmup is null; it must be a whole number"):
        parse_recipe(ROW | {"optimiser": rloo | {"kind": "ppo"}})


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(normalizer="none"), "row.yaml: unknown setting 'normalizer'; did you mean 'normaliser'"),
        (changed(normaliser="location_awar"), "did you mean 'location_aware'"),
        (changed(optimiser={"kind": "pppo"}), "optimiser.kind is 'pppo'; did you mean 'ppo'"),
        (changed(optimiser={}), "optimiser.kind is null; known: ppo, ppo_a2c"),
        (changed(optimiser="ppo"), "must be a mapping"),
        (changed(readout={"segmentr": {}}), "unknown setting 'readout.segmentr'; did you mean 'segmenter'"),
        (changed(readout=None), "'readout' must say the segmenter"),
        (changed(readout={"segmenter": {"kind": "token"}, "read": "values"}), "did you mean 'value'"),
        (changed(credit="evensplit"), "row.yaml: credit is 'evensplit'; did you mean 'even_split'?"),
        (changed(credit=None), "credit"),
        (changed(title=None), "title"),
        (changed(estimator="ridge"), "estimator is 'ridge'; known: huber, ols"),
        (changed(kind="rewards"), "kind is 'rewards'; did you mean 'reward'?"),
    ],
)
def test_mistakes_are_named_with_the_nearest(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(row, "row.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("row.yaml")


AGGREGATE = {"segmenter": {"kind": "bandit"}, "read": "aggregate"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(optimiser={"kind": "dpo"}), "does not fit"),
        (changed(kind="supervised"), "does not fit"),
        (changed(kind="supervised", optimiser={"kind": "dpo"}), "has 1 reward components"),
        ({"title": "t", "kind": "reward", "backbone": "b", "optimiser": {"kind": "ppo"}}, "has 0 reward components"),
        (changed(readout=AGGREGATE, credit="last_token"), "use 'sequence'"),
        (changed(readout=AGGREGATE, normaliser="global", credit="last_token"), "use 'sequence'"),
        (changed(readout=AGGREGATE, normaliser="sequence"), "takes Segments but read-out 'aggregate' gives Sequence"),
        (changed(credit="last_token"), "takes Sequence but read-out 'value' gives Segments"),
    ],
)
def test_contradictions_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(row)


FUNCTION: dict[str, Any] = {"function": "own:brevity", "gives": "sequence", "credit": "last_token"}
MODEL = {name: ROW[name] for name in ("reward_model", "readout", "normaliser", "credit")}
MIXED = changed(**dict.fromkeys(MODEL)) | {"components": [MODEL, {**FUNCTION, "weight": 0.5}]}


def test_reward_models_and_functions_mix_in_one_row() -> None:
    recipe = parse_recipe(MIXED)
    assert [component.name for component in recipe.components] == ["segment", "own:brevity"]
    assert reward_models(recipe) == ["segment"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward_model": "segment"}, "a component needs one of"),
        ({"function": None}, "a component needs one of"),
        ({"normaliser": "global"}, "has no read-out and no normaliser"),
        ({"gives": "segments"}, "gives is 'segments'; known: sequence, tokens"),
        ({"credit": "as_is"}, "takes Tokens but function 'own:brevity' gives Sequence"),
    ],
)
def test_a_function_is_no_model(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        parse_recipe(MIXED | {"components": [{**FUNCTION, **change}]})


def test_a_component_that_is_no_mapping_is_refused() -> None:
    row = {"title": "t", "kind": "reward", "backbone": "b", "optimiser": {"kind": "ppo"}, "components": ["segment"]}
    with pytest.raises(RecipeError, match="must be a mapping"):
        parse_recipe(row)


def test_a_component_is_shaped_by_one_step_or_several() -> None:
    recipe = parse_recipe(changed(shaping={"kind": "par", "references": 5}))
    assert referenced_models(recipe) == ["segment"]
    recipe = parse_recipe(changed(shaping=[{"kind": "length_penalty"}, {"kind": "minmax"}]))
    assert referenced_models(recipe) == []
    recipe = parse_recipe(changed(shaping={"kind": "ceil", "ceiling": {"sft_deviations": 2.0}}))
    assert referenced_models(recipe) == ["segment"]


TOKENS: dict[str, Any] = {**FUNCTION, "gives": "tokens", "credit": "as_is"}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(shaping={"kind": "parr"}), "row.yaml: unknown shaping 'parr'; did you mean 'par'"),
        (changed(shaping={"kind": "par", "references": 0}), "references is 0"),
        (changed(shaping="par"), "shaping is 'par'; it must be a mapping"),
        (changed(shapin={"kind": "par"}), "unknown setting 'shapin'; did you mean 'shaping'"),
        (
            MIXED | {"components": [{**TOKENS, "shaping": {"kind": "length_penalty"}}]},
            "the shaping takes Sequence or Segments but function 'own:brevity' gives Tokens",
        ),
        (
            MIXED | {"components": [{**FUNCTION, "shaping": {"kind": "par"}}]},
            "the shaping needs reference rewards, but function 'own:brevity' has none",
        ),
    ],
)
def test_shapings_that_do_not_fit_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(row, "row.yaml")
    assert message in str(caught.value)


def test_every_shaping_of_the_only_component_is_useless_for_online_dpo() -> None:
    dpo = {"kind": "online_dpo"}
    for shaping in ({"kind": "clip"}, [{"kind": "length_penalty"}, {"kind": "ceil", "ceiling": 1.0}]):
        sequence = {"readout": AGGREGATE, "normaliser": "none", "credit": "last_token", "shaping": shaping}
        assert "never reaches online DPO" in str(useless_shaping(parse_recipe(changed(**sequence, optimiser=dpo))))
        parts = [{**MODEL, "readout": AGGREGATE, **sequence}, FUNCTION]
        assert useless_shaping(parse_recipe(MIXED | {"components": parts, "optimiser": dpo})) is None
    assert "never reaches" in str(useless_shaping(parse_recipe(changed(shaping={"kind": "clip"}, optimiser=dpo))))


def test_an_affine_shaping_is_useless_for_one_value_per_response_only() -> None:
    sequence = {"readout": AGGREGATE, "normaliser": "none", "credit": "last_token", "shaping": {"kind": "minmax"}}
    grpo = {"kind": "grpo"}
    assert "GRPO" in str(useless_shaping(parse_recipe(changed(**sequence, optimiser=grpo))))
    assert useless_shaping(parse_recipe(changed(**sequence))) is None
    assert useless_shaping(parse_recipe(changed(shaping={"kind": "minmax"}, optimiser=grpo))) is None
    parts = [{**MODEL, "readout": AGGREGATE, **sequence}, FUNCTION]
    assert useless_shaping(parse_recipe(MIXED | {"components": parts, "optimiser": grpo})) is None


NAN = float("nan")
PPO: dict[str, Any] = {"kind": "ppo"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"credits": "even_split"}, "unknown setting 'credits'; did you mean 'credit'?"),
        ({"kl_coef": 0.1}, "unknown setting 'kl_coef'; it belongs under 'optimiser'"),
        ({"optimiser": {"kind": "dpo"}, "beta": 0.1}, "unknown setting 'beta'; it belongs under 'optimiser'"),
        ({"segmenter": {"kind": "bandit"}}, "unknown setting 'segmenter'; it belongs under 'readout'"),
        ({"patience": 3}, "unknown setting 'patience'; it belongs under 'alarm'"),
        ({"rank": 3}, "unknown setting 'rank'; it belongs under 'lora'"),
        ({"clamp": 0}, "clamp is 0; it must be above 0"),
        ({"clamp": -1}, "clamp is -1; it must be above 0"),
        ({"clamp": True}, "clamp is true; it must be a number or null"),
        ({"clamp": "ten"}, "clamp is 'ten'; it must be a number or null"),
        ({"weight": 0}, "weight is 0; it must be other than 0"),
        ({"weight": NAN}, "weight is nan; it must be a finite number"),
        ({"weight": "x"}, "weight is 'x'; it must be a number"),
        ({"lora": {"rank": 0}}, "lora.rank is 0; it must be from 1 to 65536"),
        ({"lora": {"rnk": 8}}, "unknown setting 'lora.rnk'; did you mean 'rank'?"),
        ({"alarm": [1]}, "alarm is [1]; it must be a mapping"),
        ({"alarm": {"patience": 0}}, "alarm.patience is 0; it must be at least 1"),
        ({"alarm": {"on_hacking": "stp"}}, "alarm.on_hacking is 'stp'; did you mean 'stop'?"),
        ({"imitation": {"phi": -1}}, "imitation.phi is -1; it must be at least 0"),
        ({"optimiser": {**PPO, "kl_coef": NAN}}, "optimiser.kl_coef is nan; it must be a finite number"),
        ({"optimiser": {**PPO, "kl_coef": "1e-2"}}, "with a decimal point, such as 1.0e-02"),
        (
            {"optimiser": {**PPO, "kl_coeff": 0.1}},
            "'kl_coeff' of optimiser 'ppo'; did you mean 'kl_coef'?",
        ),
        ({"optimiser": {**PPO, "kl_coef": {"times": NAN}}}, "state a number, or {times: 2}"),
        ({"optimiser": {**PPO, "kl_coef": {"time": 2}}}, "state a number, or {times: 2}"),
        ({"optimiser": {**PPO, 5: 1}}, "unknown setting '5' of optimiser 'ppo'"),
        ({"optimiser": {**PPO, "advantage": "gea"}}, "optimiser.advantage is 'gea'; did you mean 'gae'?"),
        ({"optimiser": {**PPO, "clip": 0}}, "optimiser.clip is 0; it must be above 0"),
        ({"readout": {"segmenter": {"kind": "entropi", "cutoff": "1.75"}}}, "did you mean 'entropy'?"),
        ({"readout": {"segmenter": {"kind": "ngram", "n": 0}}}, "n is 0; it must be at least 1"),
        ({"readout": {"segmenter": {"kind": "ngram"}}}, "'n' is missing"),
        ({"readout": {"segmenter": {"kind": "sat", "model": "a", "threshold": 0.1}}}, "unknown setting 'threshold'"),
        ({"shaping": {"kind": "par", "reference": 5}}, "unknown option 'reference'; did you mean 'references'?"),
        ({"shaping": {"kind": "ceil", "ceiling": {"sft_deviation": 2}}}, "state a number, or {value: ..."),
        ({"combination": {"kind": "gat"}}, "unknown combination 'gat'; did you mean 'gate'?"),
        ({"combination": {"kind": "gate", "by": "segment"}}, "'threshold' is missing"),
        ({"combination": {"kind": "gate", "by": "segment", "threshold": {"quantile": 7}}}, "with q in (0, 1)"),
        ({5: 1}, "unknown setting '5'"),
        ({"title": 5}, "title is 5; it must be text"),
    ],
)
def test_what_a_stage_would_refuse_is_refused_when_the_row_is_read(change: dict[Any, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(changed(**{}) | change, "row.yaml")
    assert str(caught.value).startswith("row.yaml: ")
    assert message in str(caught.value)


def test_components_are_a_list_with_names_of_their_own() -> None:
    row = {"title": "t", "kind": "reward", "backbone": "b", "optimiser": PPO}
    with pytest.raises(RecipeError, match="row: components is 5; it must be a list of mappings"):
        parse_recipe(row | {"components": 5}, "row")
    with pytest.raises(RecipeError, match="two components have the name 'segment'"):
        parse_recipe(row | {"components": [MODEL, MODEL]}, "row")


def test_an_empty_setting_is_refused_where_it_says_nothing() -> None:
    with pytest.raises(RecipeError, match="alarm is null; it must be a mapping"):
        parse_recipe(changed() | {"alarm": None})
