"""Settings of a stage's training that depend on its device: resolved, applied to the models, logged and recorded."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from torch import nn
from transformers import PreTrainedModel

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.models.device import DeviceSettings, Load, StatedSettings, granted, resolve, resolved
from rlhf_core.models.forward import recompute_layers
from rlhf_core.models.loading import PRECISIONS, decoder_of
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.stepper import deepspeed_config, deepspeed_in_bf16
from rlhf_core.supervised.config import TrainingConfig


def transformer_of(model: nn.Module) -> PreTrainedModel:
    """Returns the part of a model that computes hidden states: of an encoder-decoder, the whole."""
    if isinstance(model, ScalarModel):
        return model.backbone
    assert isinstance(model, PreTrainedModel)
    body = model if model.config.is_encoder_decoder else decoder_of(model)
    assert isinstance(body, PreTrainedModel)
    return body


def load_of(models: Sequence[nn.Module], tokens: int, frozen: Sequence[nn.Module] = ()) -> Load:
    """Returns the training of models as the memory forecast knows it.

    Args:
        models: trained beside each other; of the first one's shape.
        tokens: of one forward pass.
        frozen: other models on the device.
    """
    config = transformer_of(models[0]).config
    counts = [(p.numel(), p.requires_grad) for model in models for p in model.parameters()]
    fixed = sum(count for count, trained in counts if not trained)
    trained = tuple(sum(p.numel() for p in model.parameters() if p.requires_grad) for model in models)
    others = sum(p.numel() for model in frozen for p in model.parameters())
    return Load(trained, fixed + others, int(config.hidden_size), int(config.num_hidden_layers), tokens)


def apply_device_settings(
    models: Sequence[nn.Module],
    config: TrainingConfig | OptimiserConfig,
    tokens: int,
    frozen: Sequence[nn.Module] = (),
) -> DeviceSettings:
    """Resolves the settings of a training on this stage's device and applies them to its models, in place.

    Args:
        models: that are trained, on their device.
        config: settings, which may leave these to the device.
        tokens: of one forward pass at most.
        frozen: other models on the device.

    Raises:
        RecipeError: a setting that an architecture cannot have.
    """
    bodies = [transformer_of(model) for model in models]
    first = bodies[0]
    names = {dtype: name for name, dtype in PRECISIONS.items()}
    stated = StatedSettings(
        precision="bf16" if deepspeed_in_bf16() else names.get(first.dtype, str(first.dtype)),
        attention=first.config._attn_implementation,
        gradient_checkpointing=config.gradient_checkpointing,
        processes=distributed.world_size(),
    )
    found = resolve(stated, granted(), load_of(models, tokens, frozen), deepspeed_config())
    if found.gradient_checkpointing and not all(recompute_layers(body) for body in bodies):
        without = f"{first.config.model_type} has no layers that transformers marks for gradient checkpointing"
        if config.gradient_checkpointing:
            raise RecipeError(f"gradient_checkpointing is true, but {without}; leave it out, or lower microbatch")
        _say(f"note: {without}; lower microbatch where memory is short")
        found = replace(found, gradient_checkpointing=False)
    resolved.clear()
    resolved.update(asdict(found))
    if granted().on_gpu or found.gradient_checkpointing:
        _say(f"{granted()}: {found}")
    return found


def apply_supervised_device_settings(
    model: nn.Module, config: TrainingConfig, longest: int, frozen: Sequence[nn.Module] = ()
) -> DeviceSettings:
    """Resolves and applies the settings of a training on a fixed data set; see `apply_device_settings`.

    Args:
        longest: tokens of the longest row; of a pair, of both sides.
    """
    rows = min(config.microbatch, -(config.batch // -distributed.world_size()))
    return apply_device_settings([model], config, rows * longest, frozen)


def _say(line: str) -> None:
    if not distributed.rank():
        print(line, file=sys.stderr)
