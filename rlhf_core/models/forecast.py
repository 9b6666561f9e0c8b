"""Forecasts of the memory of each GPU and of the GPU hours of training, without running it.

**Memory.** A trained model of N parameters at b bytes each (4, or 2 under bf16), over W ranks, has weights b N,
gradients b N and Adam's moments 8 N, and under ZeRO or bf16 a float32 copy of its weights, 4 N; bf16 without DeepSpeed
has its gradients in float32. ZeRO 1 divides copy and moments by W, 2 the gradients too, 3 the weights too; offload puts
copy and moments into the CPU's memory. Under ZeRO 3 one model at a time is whole, b N, for rollouts or scoring. A
frozen model has b N on every GPU. Activations of a microbatch of t tokens without recomputation are 17 b t hidden
layers (Korthikanti et al. 2022, Eq. 2, without the attention matrix, which fused attention does not keep), with
recomputation b t hidden (layers + 17). A rollout's cache is 2 b layers key-value-heads head-size tokens. Not in it:
buffers of the libraries and fragmentation, for which a tenth is added.

**Hours.** A transformer of N parameters takes 2 N operations per token forward and 4 N more backward (Kaplan et al.
2020, section 2.1; attention over the length is left out, a tenth at 2,000 tokens). Training t tokens is 6 N t, scoring
them 2 N t. Generating them is 2 N t too, at a much smaller share of the peak, since it is bound by memory. What a GPU
reaches of its peak is assumed, below; real runs differ by a factor of about two.
"""

from __future__ import annotations

import re
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
        """Returns (bytes on each GPU, bytes per rank in the CPU's memory) of a trained model."""
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


@dataclass(frozen=True)
class Peak:
    """Limits of a GPU by its data sheet: dense bf16 operations, and bytes to and from its memory, per second."""

    operations: float
    bandwidth: float


#: By the word of the device's name that says which GPU it is; of several boards the fastest.
PEAKS = {
    "H200": Peak(989e12, 4800e9), "H100": Peak(989e12, 3350e9), "A100": Peak(312e12, 2039e9),
    "L40S": Peak(362e12, 864e9), "L4": Peak(121e12, 300e9), "A10": Peak(125e12, 600e9),
    "4090": Peak(165e12, 1008e9), "3090": Peak(71e12, 936e9),
}  # fmt: skip
#: Of an A100, which the published runs used.
PEAK = PEAKS["A100"].operations
#: Shares of the peak: training under ZeRO 3, scoring, and sampling in batches of tens.
TRAIN_SHARE, SCORE_SHARE, SAMPLE_SHARE = 0.35, 0.45, 0.05


@dataclass(frozen=True)
class Work:
    """Parameters times tokens of one stage, summed over models."""

    trained: float = 0.0
    scored: float = 0.0
    sampled: float = 0.0

    @property
    def operations(self) -> float:
        return 6 * self.trained + 2 * self.scored + 2 * self.sampled

    def gpu_hours(self, peak: float = PEAK) -> float:
        """Returns hours of one GPU; over several, as many in all."""
        seconds = 6 * self.trained / TRAIN_SHARE + 2 * self.scored / SCORE_SHARE + 2 * self.sampled / SAMPLE_SHARE
        return seconds / peak / 3600

    @property
    def assumed_share(self) -> float:
        """Returns the share of the peak that `gpu_hours` assumes for this mixture of work."""
        return self.operations / (self.gpu_hours(peak=1.0) * 3600)


def peak_of(device: str) -> Peak | None:
    """Returns the limits of a device by its name, such as `NVIDIA A100-SXM4-80GB`; None if it is not listed."""
    return next((PEAKS[word] for word in re.split(r"[\s-]+", device) if word in PEAKS), None)


def supervised(parameters: int, rows: float, epochs: float, tokens: float) -> Work:
    """Returns the training on rows of a mean length, a validation pass left out."""
    return Work(trained=parameters * rows * epochs * tokens)


def policy_run(
    policy: int, critic: int, frozen: int, *, responses: float, epochs: float, prompt: float, response: float
) -> Work:
    """Returns the policy optimisation over a number of sampled responses.

    Args:
        policy, critic, frozen: parameters of both and of the reference and the reward models together.
        responses, epochs: sampled in the whole run, and passes over each.
        prompt, response: mean tokens.
    """
    tokens = responses * (prompt + response)
    return Work(
        trained=(policy + critic) * tokens * epochs,
        scored=(policy + critic + frozen) * tokens,
        sampled=policy * responses * response,
    )
