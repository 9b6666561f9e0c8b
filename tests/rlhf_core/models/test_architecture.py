"""Facts about models that are known without torch agree with what transformers builds."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from transformers import CONFIG_MAPPING

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import (
    _read,
    check_architecture,
    defaults_of,
    field,
    known_configuration,
    known_models,
    linear_layers,
    unknown_targets,
)
from rlhf_core.models.loading import on_meta

SMALL = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("model_type", sorted(_read("linear_layers.yaml")))
def test_linear_layers_are_those_of_the_built_model(model_type: str) -> None:
    model = on_meta(CONFIG_MAPPING[model_type](**SMALL))
    built = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    assert sorted(linear_layers({"model_type": model_type, "num_hidden_layers": 2})) == sorted(built)


@pytest.mark.parametrize("source", sorted(known_models()))
def test_models_that_scales_load_are_valid_and_have_the_positions_of_their_configuration(source: str) -> None:
    stated = dict(known_models()[source])
    stated.pop("vocab_size")
    check_architecture(stated)
    config = known_configuration(source)
    assert field(stated, ("max_position_embeddings",)) == getattr(config, "max_position_embeddings", None)


TYPES = sorted({*_read("configurations.yaml")} - {"every"})


@pytest.mark.parametrize("model_type", TYPES)
def test_fields_and_defaults_are_those_of_the_configuration_class(model_type: str) -> None:
    known, every, made = defaults_of(model_type), {*_read("configurations.yaml")["every"]}, CONFIG_MAPPING[model_type]()
    stated = {each.name: each.default for each in fields(made)}  # type: ignore[arg-type]
    for name, default in known.items():
        assert default is None or stated[name] == default
        assert default is not None or not isinstance(stated.get(name), int | float | str)
    assert {name for name in {**vars(made), **stated} if not name.startswith("_")} <= {*known, *every}
    assert {*made.attribute_map} <= {*known}


def test_targets_are_ends_of_names_or_an_expression_of_whole_names() -> None:
    layers = linear_layers({"model_type": "llama", "num_hidden_layers": 2})
    assert unknown_targets("all-linear", layers) == []
    assert unknown_targets(["q_proj", "mlp.up_proj", "proj"], layers) == ["proj"]
    assert unknown_targets(r".*\.1\.self_attn\.[qv]_proj", layers) == []
    assert unknown_targets(r".*\.2\.self_attn\.[qv]_proj", layers) == [r".*\.2\.self_attn\.[qv]_proj"]


def test_a_model_type_that_transformers_lacks_is_refused_with_the_nearest() -> None:
    with pytest.raises(RecipeError, match="model_type is 'gemma22'; did you mean 'gemma2'"):
        check_architecture({"model_type": "gemma22"})
    with pytest.raises(RecipeError, match=r"model_type is 'vit'; known: gemma, .*; load a model of another type"):
        check_architecture({"model_type": "vit"})


@pytest.mark.parametrize("name", ["num_hidden_layers", "hidden_size", "max_position_embeddings"])
def test_a_size_that_no_machine_can_build_is_refused_at_once(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{name} is 1000000000000000000; it must be at most \d+"):
        check_architecture({"model_type": "llama", name: 10**18})
