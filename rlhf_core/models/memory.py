"""A model of the memory of each GPU.

A trained model of N parameters at b bytes each (4, or 2 under bf16), over W ranks, has weights b N, gradients b N and
Adam's moments 8 N, and under ZeRO or bf16 a float32 copy of its weights, 4 N; bf16 without DeepSpeed has its gradients
in float32. ZeRO 1 divides copy and moments by W, 2 the gradients too, 3 the weights too; offload puts copy and moments
into the CPU's memory. Under ZeRO 3 one model at a time is whole, b N, for rollouts or scoring. A frozen model has b N
on every GPU. Activations of a microbatch of t tokens without recomputation are 17 b t hidden layers (Korthikanti et al.
2022, Eq. 2, without the attention matrix, which fused attention does not keep), with recomputation b t hidden
(layers + 17). A rollout's cache is 2 b layers key-value-heads head-size tokens. Not in it: buffers of the libraries and
fragmentation, for which a tenth is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

GIB = 2**30
OVERHEAD = 1.1


@dataclass(frozen=True)
class Sharding:
    """Distribution of trained models over the ranks.

    Args:
        ranks: GPUs.
        stage: ZeRO's, None without DeepSpeed.
        bf16: whether weights are bf16.
        offload: whether the optimiser is in the CPU's memory.
    """

    ranks: int
    stage: int | None = None
    bf16: bool = False
    offload: bool = False

    @classmethod
    def of(cls, ranks: int, deepspeed: Mapping[str, Any] | None) -> Sharding:
        """Returns the sharding that a DeepSpeed configuration states, or none."""
        if deepspeed is None:
            return cls(ranks)
        zero = deepspeed["zero_optimization"]
        bf16 = bool(deepspeed.get("bf16", {}).get("enabled"))
        return cls(ranks, int(zero["stage"]), bf16, zero.get("offload_optimizer", {}).get("device") == "cpu")

    @property
    def bytes(self) -> int:
        """Returns the bytes of a parameter, an activation or a cached state."""
        return 2 if self.bf16 else 4

    def trained(self, parameters: int) -> tuple[float, float]:
        """Returns (bytes on each GPU, bytes per rank in the CPU's memory) of a model that is trained."""
        stage = self.stage or 0
        weights = self.bytes * parameters / (self.ranks if stage >= 3 else 1)
        gradients = self.bytes * parameters / (self.ranks if stage >= 2 else 1)
        gradients *= 2 if self.bf16 and self.stage is None else 1
        copied = bool(stage or self.bf16)
        optimiser = (12 if copied else 8) * parameters / (self.ranks if stage >= 1 else 1)
        return weights + gradients + (0 if self.offload else optimiser), optimiser if self.offload else 0.0

    def whole(self, parameters: int) -> float:
        """Returns bytes on each GPU of a sharded model while it is gathered."""
        return float(self.bytes * parameters) if self.stage == 3 else 0.0

    def activations(self, config: PreTrainedConfig, tokens: int, *, recomputed: bool = False) -> float:
        """Returns bytes of a forward pass of that many tokens which are kept for the backward pass."""
        return self.kept(tokens, int(config.hidden_size), int(config.num_hidden_layers), recomputed=recomputed)

    def kept(self, tokens: int, hidden: int, layers: int, *, recomputed: bool = False) -> float:
        """Returns bytes of activations; with recomputation, every layer's input and one layer's activations."""
        states = layers + 17.0 if recomputed else 17.0 * layers
        return states * self.bytes * tokens * hidden

    def cache(self, config: PreTrainedConfig, tokens: int) -> float:
        """Returns bytes of the key-value cache of that many tokens."""
        heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
        size = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        return 2.0 * self.bytes * int(config.num_hidden_layers) * heads * size * tokens
