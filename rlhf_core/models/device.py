"""The device that a stage computes on, described by what its settings depend on; without importing torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

#: Compute capability from which a GPU computes in bf16 and TF32.
BF16_SINCE = 8.0


@dataclass(frozen=True)
class Device:
    """The GPUs, or the CPU, that one stage or this machine has.

    Args:
        name: of a GPU, or the CPU.
        memory_gb: GiB of a GPU; None on the CPU.
        bf16: whether it computes in bf16.
        tf32: whether it multiplies float32 matrices in TF32.
        flash_attention: whether flash_attn is installed and runs on it.
        count: GPUs.
    """

    name: str
    memory_gb: float | None = None
    bf16: bool = False
    count: int = 0
    tf32: bool = False
    flash_attention: bool = False

    @property
    def on_gpu(self) -> bool:
        return self.memory_gb is not None

    def __str__(self) -> str:
        if self.memory_gb is None:
            return self.name
        return f"{self.count} x {self.name}, {self.memory_gb:.0f} GiB"


CPU = Device("CPU")


def gpu(name: str, memory_gb: float, capability: float, count: int) -> Device:
    """Returns GPUs of a compute capability, with flash attention where its package is installed."""
    modern = capability >= BF16_SINCE
    installed = find_spec("flash_attn") is not None
    return Device(name, memory_gb, bf16=modern, count=count, tf32=modern, flash_attention=modern and installed)


def device_of(lines: Sequence[str]) -> Device:
    """Returns the GPU of the least memory of `nvidia-smi`'s lines of name, MiB and compute capability."""
    found = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
    name, memory, capability = min(found, key=lambda parts: float(parts[1]))
    return gpu(name, float(memory) / 1024, float(capability), len(found))


_granted = CPU


def grant(device: Device) -> None:
    """Sets the device that models of this process are loaded and trained for."""
    global _granted
    _granted = device


def granted() -> Device:
    """Returns the device that `grant` set; the CPU before."""
    return _granted
