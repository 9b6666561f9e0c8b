"""Shapes of models by their configuration's fields, without torch and transformers: contradictions, positions, layers.

Fields and their defaults are in configurations.yaml, since transformers' classes take the seconds of torch.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import yaml

from rlhf_core.errors import RecipeError, hint

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

#: Names of the same field in configurations of several model types.
WIDTH = ("hidden_size", "d_model", "n_embd")
HEADS = ("num_attention_heads", "num_heads", "n_head")
LAYERS = ("num_hidden_layers", "num_layers", "n_layer")
POSITIONS = ("max_position_embeddings", "n_positions")
#: Fields that say a number of things, or a width.
SIZES = (
    *WIDTH, *HEADS, *LAYERS, *POSITIONS, "intermediate_size", "d_ff", "d_kv", "n_inner", "head_dim",
    "num_key_value_heads", "num_decoder_layers", "relative_attention_num_buckets", "relative_attention_max_distance",
)  # fmt: skip
#: Largest numbers of layers and of anything else; published models have less than a tenth.
MOST_LAYERS, MOST = 10_000, 200_000_000
#: Fields that the tokenizer gives.
OF_TOKENIZER = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")


@cache
def _read(name: str) -> Any:
    return yaml.safe_load(resources.files("rlhf_core.models").joinpath(name).read_text(encoding="utf-8"))


def known_models() -> Mapping[str, Mapping[str, Any]]:
    """Returns the configurations' fields of the models that the scales load, by hub id or folder."""
    known: Mapping[str, Mapping[str, Any]] = _read("architectures.yaml")
    return known


def defaults_of(model_type: object) -> Mapping[str, Any]:
    """Returns the fields of a model type's configuration with their defaults, None for one that is not a plain value;
    empty for a type that is not known."""
    fields: Mapping[str, Any] = _read("configurations.yaml").get(str(model_type), {})
    return fields


def architecture_of(source: str | None, architecture: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Returns a backbone's configuration fields; empty where they are not known before it is loaded."""
    return architecture if architecture is not None else known_models().get(str(source), {})


def known_configuration(source: str) -> PreTrainedConfig:
    """Returns the configuration of a model that a scale loads, without a network.

    Raises:
        RecipeError: it is not in architectures.yaml.
    """
    known = known_models()
    if source not in known:
        raise RecipeError(
            f"the sizes of '{source}' are not known; add its configuration's fields to "
            f"rlhf_core/models/architectures.yaml (there: {', '.join(known)})"
        )
    from transformers import AutoConfig

    options = dict(known[source])
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return AutoConfig.for_model(options.pop("model_type"), **special, **options)


def field(architecture: Mapping[str, Any], names: Sequence[str]) -> int | None:
    """Returns the number of the first field that an architecture states, else of the first that has a default."""
    defaults = defaults_of(architecture.get("model_type"))
    values = (values[name] for values in (architecture, defaults) for name in names if values.get(name) is not None)
    return next((value for value in values if isinstance(value, int)), None)


# --- refusals --------------------------------------------------------------------------------------------------------


def check_architecture(architecture: Mapping[str, Any]) -> None:
    """Refuses an unknown model type or field, a size or rate out of range, and sizes that do not go into each other."""
    kind = str(architecture.get("model_type"))
    known = defaults_of(kind)
    if not known:
        types = [name for name in _read("configurations.yaml") if name != "every"]
        raise RecipeError(f"model_type is '{kind}'{hint(kind, types)}; load a model of another type from a folder")
    for name, value in architecture.items():
        _check_field(kind, known, name, value)
    width, heads = field(architecture, WIDTH), field(architecture, HEADS)
    groups, size = field(architecture, ("num_key_value_heads",)), field(architecture, ("head_dim", "d_kv"))
    if heads and groups and "num_key_value_heads" in architecture and heads % groups:
        raise RecipeError(
            f"num_key_value_heads is {groups}, which does not divide the {heads} attention heads; take a divisor"
        )
    if size is None and width and heads:
        if width % heads:
            name = next((name for name in WIDTH if name in architecture), WIDTH[0])
            raise RecipeError(f"{name} is {width}, which is not a multiple of its {heads} heads")
        size = width // heads
    if "rope_parameters" in known and size is not None and size % 2:
        raise RecipeError(f"a head has {size} dimensions; rotary positions need an even number of them")


def _check_field(kind: str, known: Mapping[str, Any], name: str, value: Any) -> None:
    if name in OF_TOKENIZER:
        raise RecipeError(f"{name} is {value!r}, but it is the tokenizer's; leave it out")
    if name not in known and name not in _read("configurations.yaml")["every"]:
        raise RecipeError(f"{kind} has no field '{name}'{hint(name, [*known, 'model_type'])}")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in SIZES and value is not None and not (number and isinstance(value, int) and value >= 1):
        raise RecipeError(f"{name} is {value!r}; it must be a whole number of at least 1")
    most = MOST_LAYERS if name in (*LAYERS, "num_decoder_layers") else MOST
    if name in SIZES and value is not None and value > most:
        raise RecipeError(f"{name} is {value}; it must be at most {most}")
    if number and not math.isfinite(value):
        raise RecipeError(f"{name} is {value}; it must be a finite number")
    rate = name.endswith(("dropout", "dropout_rate", "pdrop"))
    if rate and not (number and 0 <= value < 1):
        raise RecipeError(f"{name} is {value!r}; it must be at least 0 and below 1")


# --- layers ----------------------------------------------------------------------------------------------------------


def linear_layers(architecture: Mapping[str, Any]) -> list[str]:
    """Returns the names of a model's linear layers, the output projection included; empty where they are not known."""
    patterns: list[str] = _read("linear_layers.yaml").get(architecture.get("model_type"), [])
    layers = field(architecture, LAYERS) or 1
    return [pattern.replace("{n}", str(n)) for pattern in patterns for n in range(layers if "{n}" in pattern else 1)]


def unknown_targets(targets: str | Sequence[str], layers: Sequence[str]) -> list[str]:
    """Returns adapters' targets that fit no layer: a text is an expression of whole names, a list has ends of names."""
    if targets == "all-linear":
        return []
    if isinstance(targets, str):
        return [] if any(re.fullmatch(targets, layer) for layer in layers) else [targets]
    return [one for one in targets if not any(f".{layer}".endswith(f".{one}") for layer in layers)]


def tied_target(targets: str | Sequence[str], architecture: Mapping[str, Any]) -> str | None:
    """Returns the output projection where it is one of adapters' targets and has the embedding's weights."""
    stated = {**defaults_of(architecture.get("model_type")), **architecture}
    heads = [layer for layer in linear_layers(architecture) if "." not in layer]
    named = [targets] if isinstance(targets, str) else targets
    aimed = [head for head in heads if targets != "all-linear" and len(unknown_targets(targets, [head])) < len(named)]
    return aimed[0] if aimed and stated.get("tie_word_embeddings") else None


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
    """Returns a copy of a configuration with tiny sizes; vocabulary and positions stay.

    What makes the architecture stays, too: its class, attention, positions, activation, ties and caps.
    """

    def derived(name: str) -> bool:
        return isinstance(getattr(type(config), name, None), property)

    made = copy.deepcopy(config)
    heads = getattr(config, "num_attention_heads", None)
    shared = getattr(config, "num_key_value_heads", heads) != heads
    for name, value in {**TINY, "num_key_value_heads": 1 if shared else 2}.items():
        if getattr(made, name, None) is not None and not derived(name):
            setattr(made, name, value)
    if getattr(made, "layer_types", None) and not derived("layer_types"):
        made.layer_types = made.layer_types[: made.num_hidden_layers]
    rope = getattr(made, "rope_parameters", None)
    if isinstance(rope, dict) and any(isinstance(value, list | tuple) for value in rope.values()):
        # scaled positions have a factor for each dimension of a head (Phi-3's)
        kept = {name: rope[name] for name in ("rope_theta", "partial_rotary_factor") if name in rope}
        made.rope_parameters = {"rope_type": "default", **kept}
    return made
