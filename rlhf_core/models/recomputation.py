"""Gradient checkpointing: layers keep their inputs alone, and the backward pass computes the rest again.

transformers' own switch acts in training mode only, and policies are trained in evaluation mode, where dropout does not
move the first ratio from 1. So torch's checkpoint, without re-entrance, is put around each layer here.
Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


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
