"""Models by description: built from a small configuration, loaded from a local folder, or from a hub id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    modeling_utils,
)
from transformers.utils import logging

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from rlhf_core.models.architecture import check_architecture
from rlhf_core.models.device import StatedSettings, granted, resolve
from rlhf_core.models.forward import use_tf32

#: Precisions of a model's weights by name.
PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
#: Attention kernels by name, as transformers has them.
ATTENTIONS = ("eager", "sdpa", "flash_attention_2")
#: Remedy for a model that cannot be loaded.
REMEDY = "Give a folder with config.json and safetensors, or a hub id while the hub can be reached"


def _no_bar(bar: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return bar(*args, **{**options, "disable": True})


# Not disable_progress_bar(), which also hides the bars of downloads from the hub: those take minutes.
logging.set_tqdm_hook(_no_bar)


def auto_class(config: PreTrainedConfig) -> Any:
    """Returns transformers' class that makes a language model of a configuration."""
    return AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM


def build_language_model(
    architecture: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, seed: int
) -> PreTrainedModel:
    """Returns a randomly initialised decoder or encoder-decoder.

    Args:
        architecture: `{model_type: llama, hidden_size: 96, ...}`, fields of the transformers configuration.
        tokenizer: gives vocabulary size and special token ids.
        seed: of the initial weights.
    """
    check_architecture(architecture)
    options = dict(architecture)
    try:
        config = AutoConfig.for_model(
            options.pop("model_type"),
            vocab_size=len(tokenizer),
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **options,
        )
    except (StrictDataclassError, ValueError) as error:
        raise RecipeError(f"architecture: {' '.join(str(error).split())}") from None
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model: PreTrainedModel = auto_class(config).from_config(config, dtype=torch.float32)
    return model


def set_precision(model: nn.Module, dtype: torch.dtype) -> None:
    """Casts a model's weights in place; buffers stay: rotary frequencies of fewer bits are other frequencies."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def set_attention(model: PreTrainedModel, attention: str) -> None:
    """Chooses the attention kernel of a model, and of whoever loads it after it was saved.

    Raises:
        RecipeError: an unknown kernel, or one that this model, its precision or this machine does not have.
    """
    if attention not in ATTENTIONS:
        raise RecipeError(f"attention is '{attention}'; it must be one of {', '.join(ATTENTIONS)}")
    if attention.startswith("flash"):
        if not torch.cuda.is_available() or find_spec("flash_attn") is None:
            raise RecipeError(
                f"attention '{attention}' needs a GPU and the package flash_attn; use sdpa, or leave attention out"
            )
        if next(model.parameters()).dtype == torch.float32:
            raise RecipeError(f"attention '{attention}' computes in 16 bits: set precision to bf16, or use sdpa")
    try:
        model.set_attn_implementation(attention)
    except (ValueError, ImportError) as error:
        raise RecipeError(f"attention '{attention}': {str(error).splitlines()[0]}") from None
    model.config.attn_implementation = attention


def set_device_defaults(model: PreTrainedModel) -> None:
    """Gives a model the attention and TF32 of the device that this process was granted, unless it states a kernel."""
    device = granted()
    if not device.on_gpu:
        return
    names = {dtype: name for name, dtype in PRECISIONS.items()}
    stated = StatedSettings(
        names.get(next(model.parameters()).dtype), getattr(model.config, "attn_implementation", None)
    )
    found = resolve(stated, replace(device, flash_attention=device.flash_attention and model._supports_flash_attn))
    if stated.attention is None and found.attention is not None:
        model.set_attn_implementation(found.attention)
    if found.tf32:
        both = (model.get_encoder(), model.get_decoder()) if model.config.is_encoder_decoder else (decoder_of(model),)
        for transformer in both:
            use_tf32(transformer)


def stored_model(
    kind: Any, source: Path | str, dtype: torch.dtype | None = None, *, what: str = "model", remedy: str = REMEDY
) -> PreTrainedModel:
    """Returns a model of an auto class (None: a language model), with the attention that its configuration names.

    Raises:
        DataError: nothing that can be loaded there, or weights are missing.
        RecipeError: see `set_attention`.
    """
    with naming_damage(source, what, remedy):
        config = AutoConfig.from_pretrained(str(source), trust_remote_code=False)
        attention, config._attn_implementation = config._attn_implementation, None
        model: PreTrainedModel
        model, loading_info = (kind or auto_class(config)).from_pretrained(
            str(source), config=config, dtype=dtype or "auto", use_safetensors=True, trust_remote_code=False,
            output_loading_info=True, ignore_mismatched_sizes=True,
        )  # fmt: skip
        refuse_random(loading_info, source)
        if attention is not None:
            set_attention(model, attention)
        if dtype is None:
            set_device_defaults(model)
        return model


@contextmanager
def naming_damage(source: Path | str, what: str = "model", remedy: str = REMEDY) -> Iterator[None]:
    """Turns errors of a model's files, which transformers raises of any class, into a DataError with the folder."""
    try:
        yield
    except (RewardsmithError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{what} cannot be loaded ({said})", file=str(source), remedy=remedy) from None


def refuse_random(loading_info: Mapping[str, Any], source: Path | str) -> None:
    """Refuses a model of which transformers' loading information says that weights are missing."""
    if missing := sorted([*loading_info["missing_keys"], *(name for name, *_ in loading_info["mismatched_keys"])]):
        raise DataError(
            f"the files lack {len(missing)} weights of the model, or have them in another size, first '{missing[0]}'; "
            "transformers would make them up at random",
            file=str(source),
            remedy="Give the weights that belong to config.json",
        )


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Saves a model's configuration and weights (safetensors) in a folder.

    transformers would ask accelerate for what wraps the model, and accelerate imports DeepSpeed and MLflow to know its
    engine: about 2 s. No model is wrapped here.
    """
    unwrap = modeling_utils.unwrap_model
    modeling_utils.unwrap_model = lambda model, recursive=False: model
    try:
        model.save_pretrained(folder, safe_serialization=True)
    finally:
        modeling_utils.unwrap_model = unwrap


def load_language_model(source: Path | str, *, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Returns a decoder or an encoder-decoder from a local folder or hub id; safetensors only, no remote code.

    Weights keep the dtype in which they are stored unless another is given; see `stored_model`.
    """
    return stored_model(None, source, dtype)


def load_tokenizer(source: Path | str) -> PreTrainedTokenizerBase:
    """Returns a tokenizer from a local folder or hub id; no remote code.

    It forgets whence and in which environment it was loaded, so that saving it again writes the same files everywhere.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False)
        for name in ("is_local", "local_files_only"):
            tokenizer.init_kwargs.pop(name, None)
        if not isinstance(tokenizer.model_max_length, int | float):
            raise ValueError(f"model_max_length is {tokenizer.model_max_length!r:.40}; it must be a number")
        return tokenizer
    except Exception as error:  # of damaged files, transformers and tokenizers raise errors of any class
        # without sentencepiece transformers asks for tiktoken, which cannot read such a file either
        if find_spec("sentencepiece") is None and ("tiktoken" in str(error) or "sentencepiece" in str(error).lower()):
            raise DataError(
                "tokenizer cannot be loaded without the package sentencepiece: there is no tokenizer.json",
                file=str(source),
                remedy="Install sentencepiece (mT5 is published so), or save the tokenizer once where it is installed",
            ) from None
        raise DataError(
            f"tokenizer cannot be loaded ({(str(error).splitlines() or [type(error).__name__])[0]})",
            file=str(source),
            remedy="Give a folder with tokenizer files, or a hub id while the hub can be reached",
        ) from None


def decoder_of(model: PreTrainedModel) -> nn.Module:
    """Returns the transformer below the output projection."""
    decoder = model.get_decoder() if hasattr(model, "get_decoder") else None
    return decoder if decoder is not None else model.base_model


def backbone_of(model: PreTrainedModel) -> nn.Module:
    """Returns the body under a head: the decoder, or encoder and decoder, which share the model's weights."""
    if not model.config.is_encoder_decoder:
        return decoder_of(model)
    whole = AutoModel.from_config(model.config, dtype=model.dtype).to(model.device)
    whole.set_input_embeddings(model.get_input_embeddings())
    whole.encoder, whole.decoder = model.get_encoder(), model.get_decoder()
    return whole


def trainable_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def on_meta(config: PreTrainedConfig) -> PreTrainedModel:
    """Returns the model of a configuration, shapes only."""
    with torch.device("meta"):
        model: PreTrainedModel = auto_class(config).from_config(config)
    return model


def trainable(model: nn.Module) -> int:
    """Returns the number of parameters that are trained, shared ones once."""
    return sum(parameter.numel() for parameter in trainable_parameters(model))
