"""Tiny models of any architecture: the configuration of a published model with its sizes made small.

What makes the architecture stays: its class, attention, positions, activation, ties and caps.
"""

from __future__ import annotations

import copy
from typing import Any

from transformers import PreTrainedConfig

#: Widths, depths and numbers of heads and experts of a tiny model, by the configurations' names of them.
TINY = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "head_dim": 8, "query_pre_attn_scalar": 8,
    "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 2,
    "decoder_layers": 2, "encoder_layers": 2, "decoder_attention_heads": 2, "encoder_attention_heads": 2,
    "decoder_ffn_dim": 32, "encoder_ffn_dim": 32, "ffn_dim": 32, "word_embed_proj_dim": 16, "rotary_dim": 4,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16, "kv_lora_rank": 8,
    "q_lora_rank": 8, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
}  # fmt: skip


def make_tiny(config: PreTrainedConfig) -> PreTrainedConfig:
    """Returns a copy of a configuration with tiny sizes; vocabulary and positions stay."""
    made = copy.deepcopy(config)
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", heads) != heads
    for name, value in {**TINY, "num_key_value_heads": 1 if shared else 2}.items():
        if getattr(made, name, None) is not None and not _derived(made, name):
            setattr(made, name, value)
    if getattr(made, "layer_types", None) and not _derived(made, "layer_types"):
        made.layer_types = made.layer_types[: made.num_hidden_layers]
    _without_lists(made)
    return made


def _derived(config: PreTrainedConfig, name: str) -> bool:
    """Returns whether a field is computed from others."""
    return isinstance(getattr(type(config), name, None), property)


def _without_lists(config: Any) -> None:
    """Replaces scaled rotary positions that have a factor for each dimension of a head (Phi-3's) by plain ones."""
    rope = getattr(config, "rope_parameters", None)
    if isinstance(rope, dict) and any(isinstance(value, list | tuple) for value in rope.values()):
        kept = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        config.rope_parameters = {"rope_type": "default", **kept}
