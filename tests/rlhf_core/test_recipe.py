"""Recipes: every row file parses, mistakes are named, contradictions are refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.recipe import parse_recipe, referenced_models, useless_shaping

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


AGGREGATE = {"segmenter": {"kind": "bandit"}, "read": "aggregate"}


FUNCTION: dict[str, Any] = {"function": "own:brevity", "gives": "sequence", "credit": "last_token"}
MODEL = {name: ROW[name] for name in ("reward_model", "readout", "normaliser", "credit")}
MIXED = changed(**dict.fromkeys(MODEL)) | {"components": [MODEL, {**FUNCTION, "weight": 0.5}]}


def test_a_component_is_shaped_by_one_step_or_several() -> None:
    recipe = parse_recipe(changed(shaping={"kind": "par", "references": 5}))
    assert referenced_models(recipe) == ["segment"]
    recipe = parse_recipe(changed(shaping=[{"kind": "length_penalty"}, {"kind": "minmax"}]))
    assert referenced_models(recipe) == []
    recipe = parse_recipe(changed(shaping={"kind": "ceil", "ceiling": {"sft_deviations": 2.0}}))
    assert referenced_models(recipe) == ["segment"]


def test_an_affine_shaping_is_useless_for_one_value_per_response_only() -> None:
    sequence = {"readout": AGGREGATE, "normaliser": "none", "credit": "last_token", "shaping": {"kind": "minmax"}}
    grpo = {"kind": "grpo"}
    assert "GRPO" in str(useless_shaping(parse_recipe(changed(**sequence, optimiser=grpo))))
    assert useless_shaping(parse_recipe(changed(**sequence))) is None
    assert useless_shaping(parse_recipe(changed(shaping={"kind": "minmax"}, optimiser=grpo))) is None
    parts = [{**MODEL, "readout": AGGREGATE, **sequence}, FUNCTION]
    assert useless_shaping(parse_recipe(MIXED | {"components": parts, "optimiser": grpo})) is None


PPO: dict[str, Any] = {"kind": "ppo"}
PLAIN: dict[str, Any] = {"title": "t", "kind": "reward", "backbone": "b", "optimiser": PPO}


def with_function(**changes: Any) -> dict[str, Any]:
    """Returns a row whose only component is a function with changes."""
    return MIXED | {"components": [{**FUNCTION, **changes}]}


REFUSED: list[tuple[dict[Any, Any], str]] = [
    (ROW | {"normalizer": "none"}, "unknown setting 'normalizer'; did you mean 'normaliser'"),
    (ROW | {5: 1}, "unknown setting '5'"),
    (ROW | {"kl_coef": 0.1}, "unknown setting 'kl_coef'; it belongs under 'optimiser'"),
    (ROW | {"segmenter": {"kind": "bandit"}}, "unknown setting 'segmenter'; it belongs under 'readout'"),
    (ROW | {"patience": 3}, "unknown setting 'patience'; it belongs under 'alarm'"),
    (ROW | {"rank": 3}, "unknown setting 'rank'; it belongs under 'lora'"),
    (ROW | {"alarm": None}, "alarm is null; it must be a mapping"),
    (ROW | {"alarm": {"patience": 0}}, "alarm.patience is 0; it must be at least 1"),
    (ROW | {"imitation": {"phi": -1}}, "imitation.phi is -1; it must be at least 0"),
    (ROW | {"optimiser": {}}, "optimiser.kind is null; known: ppo, ppo_a2c"),
    (ROW | {"optimiser": "ppo"}, "must be a mapping"),
    (ROW | {"optimiser": {**PPO, "kl_coef": "1e-2"}}, "with a decimal point, such as 1.0e-02"),
    (ROW | {"optimiser": {**PPO, "kl_coef": {"time": 2}}}, "state a number, or {times: 2}"),
    (ROW | {"optimiser": {**PPO, "advantage": "gea"}}, "optimiser.advantage is 'gea'; did you mean 'gae'?"),
    (ROW | {"optimiser": {"kind": "dpo"}}, "does not fit"),
    (ROW | {"kind": "supervised"}, "does not fit"),
    (ROW | {"kind": "supervised", "optimiser": {"kind": "dpo"}}, "has 1 reward components"),
    (PLAIN, "has 0 reward components"),
    (PLAIN | {"components": 5}, "components is 5; it must be a list of mappings"),
    (PLAIN | {"components": ["segment"]}, "must be a mapping"),
    (PLAIN | {"components": [MODEL, MODEL]}, "two components have the name 'segment'"),
    (changed(readout=None), "'readout' must say the segmenter"),
    (changed(credit=None), "'credit' is missing"),
    (changed(title=None), "'title' is missing"),
    (ROW | {"readout": {"segmenter": {"kind": "ngram"}}}, "'n' is missing"),
    (ROW | {"readout": AGGREGATE, "credit": "last_token"}, "use 'sequence'"),
    (ROW | {"readout": AGGREGATE, "normaliser": "sequence"}, "takes Segments but read-out 'aggregate' gives Sequence"),
    (ROW | {"credit": "last_token"}, "takes Sequence but read-out 'value' gives Segments"),
    (with_function(reward_model="segment"), "a component needs one of"),
    (with_function(function=None), "a component needs one of"),
    (with_function(normaliser="global"), "function 'own:brevity' has no 'normaliser'; leave it out"),
    (with_function(credit="as_is"), "takes Tokens but function 'own:brevity' gives Sequence"),
    (with_function(shaping={"kind": "par"}), "needs reference rewards, which function 'own:brevity' does not have"),
    (with_function(gives="tokens", credit="as_is", shaping={"kind": "length_penalty"}), "Segments but function 'own"),
    (ROW | {"shaping": "par"}, "shaping is 'par'; it must be a mapping"),
    (ROW | {"shaping": {"kind": "par", "reference": 5}}, "unknown option 'reference'; did you mean 'references'?"),
    (ROW | {"shaping": {"kind": "ceil", "ceiling": {"sft_deviation": 2}}}, "state a number, or {value: ..."),
    (ROW | {"combination": {"kind": "gat"}}, "unknown combination 'gat'; did you mean 'gate'?"),
    (ROW | {"combination": {"kind": "gate", "by": "segment"}}, "'threshold' is missing"),
    (ROW | {"combination": {"kind": "gate", "by": "segment", "threshold": {"quantile": 7}}}, "with q in (0, 1)"),
]


@pytest.mark.parametrize(("row", "message"), REFUSED, ids=[message[:40] for _, message in REFUSED])
def test_what_a_stage_would_refuse_is_refused_when_the_row_is_read(row: dict[Any, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(row, "row.yaml")
    assert str(caught.value).startswith("row.yaml: ")
    assert message in str(caught.value)
