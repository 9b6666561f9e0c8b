"""A reward function of a user's own, which a golden run names."""

from __future__ import annotations

import torch

from rlhf_core.rollout import RolloutBatch


def brevity(batch: RolloutBatch) -> torch.Tensor:
    """Returns a reward per response that falls with its length."""
    return -batch.responses.lengths.float() / 50
