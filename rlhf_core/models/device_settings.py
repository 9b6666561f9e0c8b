"""Settings that a page may leave to the device, and what each is on a described device: one pure function.

1. **Precision**: bf16 weights with float32 copies and reductions (`rlhf_core.stepper`) on a GPU that has bf16, unless a
   DeepSpeed configuration is in float32.
2. **Attention**: flash attention where its package is installed and weights are bf16; else the model's own default.
3. **TF32** inside float32 transformers; heads, rewards and log-probabilities stay in float32
   (`rlhf_core.models.forward`).
4. **Gradient checkpointing** where the memory forecast exceeds a GPU without it.
5. **Padding-free batches** with flash attention alone: other kernels compute a whole square of the packed tokens.
6. **Processes**: one for each GPU.

On the CPU nothing changes: float32, the model's own attention, one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from rlhf_core.models.device import Device
from rlhf_core.models.memory import GIB, OVERHEAD, Sharding

FLASH = "flash_attention_2"


@dataclass(frozen=True)
class StatedSettings:
    """Settings as the pages state them; None leaves a setting to the device.

    Args:
        precision: of the weights, float32 or bf16.
        attention: kernel, as transformers names it.
        gradient_checkpointing: whether layers are computed again in the backward pass instead of being kept.
        padding_free: whether a forward pass takes the rows of a batch end to end.
        processes: of the stage.
    """

    precision: str | None = None
    attention: str | None = None
    gradient_checkpointing: bool | None = None
    padding_free: bool | None = None
    processes: int | None = None


@dataclass(frozen=True)
class Load:
    """Training work of a stage on one GPU, for the memory forecast (`rlhf_core.models.memory`).

    Args:
        trained: parameters of each trained model.
        frozen: parameters of all other models together.
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
    padding_free: bool
    processes: int

    def __str__(self) -> str:
        on = [name.replace("_", " ") for name, value in asdict(self).items() if value is True]
        attention = f"{self.attention} attention" if self.attention else "the model's own attention"
        return ", ".join([self.precision, attention, *on, f"{self.processes} process(es)"])


def resolve(
    stated: StatedSettings, device: Device, load: Load | None = None, deepspeed: Mapping[str, Any] | None = None
) -> DeviceSettings:
    """Returns the settings of a stage on a device; what is stated always wins.

    Args:
        stated: settings of the pages.
        device: that the stage was granted.
        load: its training; None where it trains nothing, or where nothing is known of it.
        deepspeed: its DeepSpeed configuration.
    """
    if not device.on_gpu:
        return DeviceSettings(
            stated.precision or "float32",
            stated.attention,
            tf32=False,
            gradient_checkpointing=bool(stated.gradient_checkpointing),
            padding_free=bool(stated.padding_free),
            processes=stated.processes or 1,
        )
    sharded_in_float32 = deepspeed is not None and not deepspeed.get("bf16", {}).get("enabled")
    precision = stated.precision or ("bf16" if device.bf16 and not sharded_in_float32 else "float32")
    flash = FLASH if device.flash_attention and precision == "bf16" else None
    attention, processes = stated.attention or flash, stated.processes or max(1, device.count)
    recomputed = stated.gradient_checkpointing
    if recomputed is None:
        recomputed = load is not None and not _fits(load, device, precision, processes, deepspeed)
    return DeviceSettings(
        precision,
        attention,
        tf32=device.tf32 and precision == "float32",
        gradient_checkpointing=recomputed,
        padding_free=attention == FLASH if stated.padding_free is None else stated.padding_free,
        processes=processes,
    )


def _fits(load: Load, device: Device, precision: str, ranks: int, deepspeed: Mapping[str, Any] | None) -> bool:
    """Returns whether a GPU has room for the activations of all layers."""
    assert device.memory_gb is not None
    sharding = replace(Sharding.of(ranks, deepspeed), bf16=precision == "bf16")
    return load.bytes(sharding, recomputed=False) <= device.memory_gb * GIB


_resolved: dict[str, Any] = {}


def note_resolved(settings: DeviceSettings) -> None:
    """Notes settings that a stage trains with, for its record; the last ones of a stage count."""
    _resolved.clear()
    _resolved.update(asdict(settings))


def take_resolved() -> dict[str, Any]:
    """Returns the settings noted since this was last called; empty where a stage trained nothing."""
    found = dict(_resolved)
    _resolved.clear()
    return found
