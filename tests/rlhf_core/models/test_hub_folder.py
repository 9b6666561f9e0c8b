"""Language models of the hub: which architectures run here as transformers runs them, and tiny models of each."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import AutoConfig, PreTrainedConfig

from rlhf_core.errors import RecipeError
from rlhf_core.models.architecture import make_tiny
from rlhf_core.models.hub_folder import check_architecture_runs

#: Configurations of about the size of published models, by model type.
RUN: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "gpt_neox": {},
    "gptj": {},
    "opt": {"word_embed_proj_dim": 512, "hidden_size": 1024, "num_attention_heads": 16},
    "bloom": {},
    "falcon": {},
    "mistral": {"sliding_window": 4096},
    "mixtral": {},
    "llama": {"tie_word_embeddings": True, "num_key_value_heads": 8},
    "phi3": {
        "rope_parameters": {
            "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 48, "long_factor": [2.0] * 48,
        },
        "original_max_position_embeddings": 4096, "max_position_embeddings": 131_072, "pad_token_id": 0,
    },
    "qwen2": {}, "qwen3": {}, "qwen3_moe": {}, "gemma2": {}, "gemma3_text": {}, "olmo2": {},
    "deepseek_v2": {"num_key_value_heads": 32, "num_experts_per_tok": 6}, "gpt_oss": {},
    "t5": {"decoder_start_token_id": 0},
}  # fmt: skip
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "granite": ({"logits_scaling": 8.0}, "differ from those of transformers"),
    "cohere": ({}, "differ from those of transformers"),
    "mamba": ({}, "no attribute 'past_key_values'"),
}


def published(model_type: str, **fields: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(model_type, **fields)


@pytest.mark.parametrize("model_type", RUN)
def test_an_architecture_that_runs_as_in_transformers_is_accepted(model_type: str) -> None:
    check_architecture_runs(published(model_type, **RUN[model_type]), "theirs")


@pytest.mark.parametrize("model_type", REFUSED)
def test_an_architecture_that_does_not_is_refused(model_type: str) -> None:
    fields, said = REFUSED[model_type]
    with pytest.raises(RecipeError, match=f"model theirs: models of type '{model_type}' cannot be trained.*{said}"):
        check_architecture_runs(published(model_type, **fields), "theirs")


def test_a_tiny_model_shares_keys_as_the_large_one_does_and_leaves_it_as_it_was() -> None:
    for own, tiny in ((32, 2), (8, 1)):
        large = published("llama", num_attention_heads=32, num_key_value_heads=own)
        assert make_tiny(large).num_key_value_heads == tiny
        assert large.hidden_size == 4096
