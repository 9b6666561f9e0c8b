"""The device that a stage computes on, and the settings that a page may leave to it; without importing torch.

1. **Precision**: bf16 weights with float32 copies and reductions (`rlhf_core.stepper`) on a GPU that has bf16, unless a
   DeepSpeed configuration is in float32.
2. **Attention**: flash attention where its package is installed and weights are bf16; else the model's own default.
3. **TF32** inside float32 transformers; heads, rewards and log-probabilities stay in float32
   (`rlhf_core.models.forward`).
4. **Gradient checkpointing** where the memory forecast exceeds a GPU without it.
5. **Processes**: one for each GPU.

On the CPU nothing changes: float32, the model's own attention, one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from typing import Any

from rlhf_core.models.forecast import GIB, OVERHEAD, Sharding

#: Compute capability from which a GPU computes in bf16 and TF32.
BF16_SINCE = 8.0


@dataclass(frozen=True)
class Device:
    """The GPUs, or the CPU, that one stage or this machine has.

    Args:
        name, memory_gb: of a GPU, in GiB; None on the CPU.
        bf16, tf32: whether it computes in bf16, and multiplies float32 matrices in TF32.
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


# --- settings ---------------------------------------------------------------------------------------------------------

FLASH = "flash_attention_2"


@dataclass(frozen=True)
class StatedSettings:
    """Settings as the pages state them; None leaves a setting to the device.

    Args:
        precision: of the weights, float32 or bf16.
        attention: kernel, as transformers names it.
        gradient_checkpointing: whether layers are computed again in the backward pass instead of being kept.
        processes: of the stage.
    """

    precision: str | None = None
    attention: str | None = None
    gradient_checkpointing: bool | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Load:
    """Training work of a stage on one GPU, for the memory forecast (`rlhf_core.models.forecast`).

    Args:
        trained, frozen: parameters of each trained model, and of all other models together.
        hidden, layers: of the transformer.
        tokens: of one forward pass.
    """

    trained: tuple[int, ...]
    frozen: int
    hidden: int
    layers: int
    tokens: int

    def bytes(self, sharding: Sharding, *, recomputed: bool) -> float:
        """Returns bytes on each GPU, overhead included."""
        models = sum(sharding.trained(parameters)[0] for parameters in self.trained) + sharding.bytes * self.frozen
        kept = sharding.kept(self.tokens, self.hidden, self.layers, recomputed=recomputed)
        return OVERHEAD * (models + kept)


@dataclass(frozen=True)
class DeviceSettings:
    """Resolved settings; `attention` is None for the model's own default."""

    precision: str
    attention: str | None
    tf32: bool
    gradient_checkpointing: bool
    processes: int

    def __str__(self) -> str:
        on = [name.replace("_", " ") for name, value in asdict(self).items() if value is True]
        attention = f"{self.attention} attention" if self.attention else "the model's own attention"
        return ", ".join([self.precision, attention, *on, f"{self.processes} process(es)"])


def resolve(
    stated: StatedSettings, device: Device, load: Load | None = None, deepspeed: Mapping[str, Any] | None = None
) -> DeviceSettings:
    """Returns the settings of a stage on a device; what is stated always wins.

    `load` is its training, None where it trains nothing or nothing is known of it.
    """
    if not device.on_gpu:
        return DeviceSettings(
            stated.precision or "float32",
            stated.attention,
            tf32=False,
            gradient_checkpointing=bool(stated.gradient_checkpointing),
            processes=stated.processes or 1,
        )
    sharded_in_float32 = deepspeed is not None and not deepspeed.get("bf16", {}).get("enabled")
    precision = stated.precision or ("bf16" if device.bf16 and not sharded_in_float32 else "float32")
    flash = FLASH if device.flash_attention and precision == "bf16" else None
    attention, processes = stated.attention or flash, stated.processes or max(1, device.count)
    recomputed = stated.gradient_checkpointing
    if recomputed is None:
        sharding = replace(Sharding.of(processes, deepspeed), bf16=precision == "bf16")
        memory = (device.memory_gb or 0.0) * GIB
        recomputed = load is not None and load.bytes(sharding, recomputed=False) > memory
    return DeviceSettings(
        precision,
        attention,
        tf32=device.tf32 and precision == "float32",
        gradient_checkpointing=recomputed,
        processes=processes,
    )


#: Types of models whose batches are padded in the stage under way, for its record.
padded: set[str] = set()
#: Settings that the stage under way trains with, for its record.
resolved: dict[str, Any] = {}
