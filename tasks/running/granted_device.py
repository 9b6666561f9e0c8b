"""The device that a stage was given, for its models and as the settings that follow from it know it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlhf_core.models.device import CPU, Device, gpu

if TYPE_CHECKING:
    import torch


def device() -> torch.device:
    """Returns the device of models: a GPU when one was given by CUDA_VISIBLE_DEVICES, else the CPU.

    A scheduler names a stage's GPU there; a stage that declares none runs on the CPU wherever it runs.
    """
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1")
    return torch.device("cuda" if given and torch.cuda.is_available() else "cpu")


def described_device() -> Device:
    """Returns the GPUs that this stage was given, the one with the least memory for all; else the CPU."""
    import torch

    if device().type != "cuda":
        return CPU
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    least = min(found, key=lambda one: one.total_memory)
    return gpu(least.name, least.total_memory / 2**30, float(f"{least.major}.{least.minor}"), len(found))
