"""Read-outs: how a trained reward model turns rollouts into a signal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from rlhf_core import distributed
from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.experience import microbatches, trimmed
from rlhf_core.rewards.signals import Segments, Sequence, SignalType
from rlhf_core.rollout import Responses, RolloutBatch
from rlhf_core.segmentation.segmenters import Segmenter

Read = Literal["value", "aggregate"]


def read_ends(values: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """[batch, max_segments] float32: token values at segment ends, 0 beyond each row's count."""
    return torch.where(ends >= 0, values.gather(1, ends.clamp(min=0)), 0.0)


@dataclass
class RewardModelScorer:
    """Reads a scalar head at the ends of a segmentation.

    Args:
        model: the reward model, in evaluation mode.
        segmenter: where it is read; not necessarily where it was trained.
        read: 'value' pays each segment its value (Segments), 'aggregate' the mean over segments (Sequence).
        head: which head.
        microbatch: rows per forward pass.
    """

    model: ScalarModel
    segmenter: Segmenter
    read: Read = "value"
    head: str = "reward"
    microbatch: int = 64

    def __post_init__(self) -> None:
        if self.read not in ("value", "aggregate"):
            raise RecipeError(f"unknown read-out '{self.read}'; known: value, aggregate")
        self.model.eval()

    @property
    def gives(self) -> SignalType:
        return Segments if self.read == "value" else Sequence

    @torch.no_grad()
    def token_values(self, batch: RolloutBatch) -> torch.Tensor:
        """[batch, response_len] float32: the head at every response token."""
        mask = batch.responses.mask
        values = torch.zeros(mask.shape, dtype=torch.float32, device=mask.device)
        for rows in microbatches(batch.prompt_mask, mask, self.microbatch):
            prompt_len, response_len = trimmed(batch.prompt_mask[rows], mask[rows])
            values[rows, :response_len] = self.model(
                batch.prompt_ids[rows, -prompt_len:],
                batch.prompt_mask[rows, -prompt_len:],
                batch.responses.ids[rows, :response_len],
                mask[rows, :response_len],
                head=self.head,
            )
        return distributed.merged(values)

    def score(self, batch: RolloutBatch) -> Segments | Sequence:
        return self.read_out(self.token_values(batch), batch.responses)

    def read_out(self, values: torch.Tensor, responses: Responses) -> Segments | Sequence:
        """The signal of responses whose head values [batch, response_len] are known."""
        segmentation = self.segmenter.segment(responses)
        segments = Segments(read_ends(values, segmentation.ends), segmentation)
        return segments if self.read == "value" else Sequence(segments.masked_mean())
