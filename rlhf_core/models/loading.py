"""Models by description: built from a small configuration, loaded from a local folder, or from a hub id."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from rlhf_core.errors import DataError, RecipeError


def build_language_model(
    architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """A randomly initialised decoder or encoder-decoder.

    Args:
        architecture: `{model_type: llama, hidden_size: 96, ...}`, fields of the transformers configuration.
        tokenizer: gives vocabulary size and special token ids.
        seed: of the initial weights.

    Raises:
        RecipeError: an unknown model type or field, with the nearest known one, or fields that contradict.
    """
    options = dict(architecture)
    model_type = options.pop("model_type", None)
    if model_type not in CONFIG_MAPPING:
        near = get_close_matches(str(model_type), CONFIG_MAPPING, n=1) or ["llama, gemma2, qwen2, t5, ..."]
        raise RecipeError(f"architecture: model_type is '{model_type}'; did you mean {near[0]}?")
    known, generation = CONFIG_MAPPING[model_type](), GenerationConfig()
    for name in options:
        if not hasattr(known, name) and not hasattr(generation, name):  # decoder_start_token_id is one of the latter
            near = get_close_matches(name, vars(known), n=1)
            raise RecipeError(
                f"architecture: {model_type} has no field '{name}'" + (f"; did you mean '{near[0]}'?" if near else "")
            )
    try:
        config = AutoConfig.for_model(
            model_type,
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **options,
        )
    except (StrictDataclassError, ValueError) as error:
        raise RecipeError(f"architecture: {' '.join(str(error).split())}") from None
    kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return kind.from_config(config, dtype=torch.float32)


def load_language_model(source: Path | str, *, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A decoder or an encoder-decoder from a local folder or hub id; safetensors only, no remote code.

    Raises:
        DataError: nothing that can be loaded there.
    """
    try:
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        return kind.from_pretrained(str(source), dtype=dtype, use_safetensors=True, trust_remote_code=False)
    except (OSError, ValueError, SafetensorError) as error:
        raise DataError(
            f"model cannot be loaded ({str(error).splitlines()[0]})",
            file=str(source),
            remedy="Give a folder with config.json and safetensors, or a hub id while the hub can be reached",
        ) from None


def load_tokenizer(source: Path | str) -> PreTrainedTokenizerBase:
    """A tokenizer from a local folder or hub id; no remote code.

    It forgets whence and in which environment it was loaded, so that saving it again writes the same files everywhere.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        for name in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(name, None)
        return tokenizer
    except (OSError, ValueError) as error:
        raise DataError(
            f"tokenizer cannot be loaded ({str(error).splitlines()[0]})",
            file=str(source),
            remedy="Give a folder with tokenizer files, or a hub id while the hub can be reached",
        ) from None


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """The transformer below the output projection."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if decoder is not None else model.base_model


def backbone_of(model: PreTrainedModel) -> nn.Module:
    """What a head is put on: the decoder, or encoder and decoder together (sharing the model's weights)."""
    if not model.config.is_encoder_decoder:
        return decoder_of(model)
    whole = AutoModel.from_config(model.config, dtype=model.dtype).to(model.device)
    whole.set_input_embeddings(model.get_input_embeddings())
    whole.encoder, whole.decoder = model.get_encoder(), model.get_decoder()
    return whole


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]
