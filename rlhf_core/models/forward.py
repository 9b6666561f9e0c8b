"""A transformer's passes: TF32 inside a float32 one, and layers computed again in the backward pass.

TF32 rounds the factors of a product to 10 bits. Within a transformer that is more exact than bf16; rewards, values,
aggregations and log-probabilities are products too, and stay exact. So the switch is on only while a transformer
computes its hidden states, off in its rotary positions, and on in the backward pass of a trained one.

Gradient checkpointing: layers keep their inputs alone, and the backward pass computes the rest again. transformers' own
switch acts in training mode only, and policies are trained in evaluation mode, where dropout does not move the first
ratio from 1. So torch's checkpoint, without re-entrance, is put around each layer here. Source: Chen et al. 2016,
"Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

#: Attribute of a transformer that multiplies in TF32.
ROUNDED = "multiplies_in_tf32"


def _on(*_: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True


def _off(*_: Any) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


def use_tf32(transformer: nn.Module) -> None:
    """Lets a transformer without output projection multiply in TF32 where a GPU can."""
    setattr(transformer, ROUNDED, True)
    transformer.register_forward_pre_hook(_on)
    transformer.register_forward_hook(_off, always_call=True)
    for module in transformer.modules():
        if "rotary" in type(module).__name__.lower():
            module.register_forward_pre_hook(_off)
            module.register_forward_hook(_on)


@contextmanager
def tf32_backward(model: nn.Module) -> Iterator[None]:
    """Yields while the backward pass of a model multiplies as its transformer does."""
    if not any(getattr(module, ROUNDED, False) for module in model.modules()):
        yield
        return
    _on()
    try:
        yield
    finally:
        _off()


def _recomputed(forward: Callable[..., Any], *args: Any, **options: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **options)
    return checkpoint(forward, *args, use_reentrant=False, **options)


def recompute_layers(model: nn.Module) -> int:
    """Lets the layers of a transformer be computed again in the backward pass; returns how many there are."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    for layer in layers:
        if "forward" not in vars(layer):
            layer.forward = partial(_recomputed, layer.forward)  # type: ignore[method-assign]
    return len(layers)
