"""A policy's weights as an engine takes them: under the names of published checkpoints, with adapters added in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

#: Elements that are read at a time for a checksum.
PART = 2**24


def hand_over_file(model: PreTrainedModel, file: Path) -> None:
    """Writes the weights that a model computes with at present, adapters included where they are on."""
    save_file({name: value.detach().cpu().contiguous() for name, value in effective(model).items()}, file)


@torch.no_grad()
def effective(model: PreTrainedModel) -> dict[str, Tensor]:
    """Returns the weights that a model computes with, each shared one once, by the names of published checkpoints."""
    found: dict[str, Tensor] = {}
    seen: set[tuple[int, torch.Size]] = set()
    for name, value in model.state_dict().items():
        place = value.data_ptr(), value.shape
        if _of_adapter(name) or place in seen:
            continue
        seen.add(place)
        prefix, adapted, last = name.rpartition(".base_layer.")
        if adapted and last == "weight":
            value = value + _delta(model.get_submodule(prefix), value)
        found[f"{prefix}.{last}" if adapted else name] = value
    return dict(revert_weight_conversion(model, found))


def _of_adapter(name: str) -> bool:
    return ".lora_" in name


def _delta(layer: Any, like: Tensor) -> Tensor:
    """Returns the active adapters' part of a layer's weights: 0 where they are off or merged already."""
    total = torch.zeros_like(like)
    if not layer.disable_adapters and not layer.merged:
        for adapter in layer.active_adapters:
            total = total + layer.get_delta_weight(adapter).to(like.dtype)
    return total


@torch.no_grad()
def checksums(model: PreTrainedModel) -> tuple[object, ...]:
    """Returns what tells whether a model computes with the same weights as before, without copies of them.

    For each parameter and buffer, the sum of its bit patterns and their sum weighted by position, both modulo 2^64;
    and whether each adapted layer has its adapters on.
    """
    switches = tuple(bool(module.disable_adapters) for module in model.modules() if hasattr(module, "disable_adapters"))
    sums = [part for value in model.state_dict().values() for part in _sums(value)]
    return (switches, *torch.stack(sums).tolist()) if sums else (switches,)


def _sums(values: Tensor) -> list[Tensor]:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    bits = values.detach().contiguous().flatten().view(kinds[values.element_size()])
    found = []
    for start in range(0, len(bits), PART):
        part = bits[start : start + PART].long()
        place = torch.arange(1, len(part) + 1, device=part.device)
        found += [part.sum(), (part * place).sum()]
    return found
