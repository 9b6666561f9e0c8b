"""GPU hours of training without running it: floating-point operations over a GPU's speed.

A transformer of N parameters takes 2 N operations per token forward and 4 N more backward (Kaplan et al. 2020,
section 2.1; attention over the length is left out, a tenth at 2,000 tokens). Training t tokens is 6 N t, scoring them
2 N t. Generating them is 2 N t too, at a much smaller share of the peak, since it is bound by memory. What a GPU
reaches of its peak is assumed, below; real runs differ by a factor of about two.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """Limits of a GPU by its maker's data sheet.

    Attributes:
        operations: dense bf16 operations per second.
        bandwidth: bytes per second to and from its memory.
    """

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
    """Tokens times parameters of one stage.

    Attributes:
        trained, scored, sampled: sum over models of parameters x tokens.
    """

    trained: float = 0.0
    scored: float = 0.0
    sampled: float = 0.0

    @property
    def operations(self) -> float:
        """Returns floating-point operations."""
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
        policy, critic: trained parameters; 0 without a critic.
        frozen: parameters of the reference and the reward models together.
        responses: sampled in the whole run.
        epochs: passes over each.
        prompt, response: mean tokens.
    """
    tokens = responses * (prompt + response)
    return Work(
        trained=(policy + critic) * tokens * epochs,
        scored=(policy + critic + frozen) * tokens,
        sampled=policy * responses * response,
    )
