"""TF32 inside float32 transformers, and nowhere else.

TF32 rounds the factors of a product to 10 bits. Within a transformer that is more exact than bf16; rewards, values,
aggregations and log-probabilities are products too, and stay exact. So the switch is on only while a transformer
computes its hidden states, off in its rotary positions, and on in the backward pass of a trained one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

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
