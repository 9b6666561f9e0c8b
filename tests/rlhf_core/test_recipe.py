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


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (changed(normalizer="none"), "row.yaml: unknown setting 'normalizer'; did you mean 'normaliser'"),
        (changed(normaliser="location_awar"), "did you mean 'location_aware'"),
        (changed(optimiser={"kind": "pppo"}), "did you mean 'ppo'"),
        (changed(optimiser={}), "unknown optimiser 'None'; known: ppo, ppo_a2c"),
        (changed(optimiser="ppo"), "must be a mapping"),
        (changed(readout={"segmentr": {}}), "readout: unknown setting 'segmentr'; did you mean 'segmenter'"),
        (changed(readout=None), "'readout' must say the segmenter"),
        (changed(readout={"segmenter": {"kind": "token"}, "read": "values"}), "did you mean 'value'"),
        (changed(credit="evensplit"), "unknown credit 'evensplit'"),
        (changed(credit=None), "credit"),
        (changed(title=None), "title"),
        (changed(estimator="ridge"), "unknown regression"),
        (changed(kind="rewards"), "'reward' or 'supervised'"),
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
        ({"gives": "segments"}, "a reward function gives sequence or tokens"),
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
            "the shaping needs reference rewards, which function 'own:brevity' has none of",
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
