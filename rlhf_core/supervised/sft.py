"""Supervised fine-tuning: mean negative log-likelihood of response tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.models.policy import Policy, TokenStatistics, pad_rows


def sequence_statistics(
    policy: Policy, sequences: Sequence[EncodedSequence], *, with_entropy: bool = False
) -> tuple[TokenStatistics, Tensor]:
    """Returns the response token statistics and mask [batch, response_len] of encoded sequences."""
    prompt_ids, prompt_mask = pad_rows([s.prompt for s in sequences], policy.pad_id, "left")
    response_ids, response_mask = pad_rows([s.response for s in sequences], policy.pad_id, "right")
    device = policy.device
    response_mask = response_mask.to(device)
    statistics = policy.statistics(
        prompt_ids.to(device), prompt_mask.to(device), response_ids.to(device), response_mask, with_entropy=with_entropy
    )
    return statistics, response_mask


def sft_loss(policy: Policy, sequences: Sequence[EncodedSequence]) -> tuple[Tensor, float]:
    """Returns (sum of -log p over response tokens, number of response tokens)."""
    statistics, mask = sequence_statistics(policy, sequences)
    return -statistics.logprobs.sum(), float(mask.sum())


@torch.no_grad()
def mean_nll(policy: Policy, sequences: Sequence[EncodedSequence], batch: int = 64) -> float:
    """Nats per response token."""
    order = distributed.own(sorted(range(len(sequences)), key=lambda i: len(sequences[i])))
    total, tokens = 0.0, 0.0
    for start in range(0, len(order), batch):
        loss, count = sft_loss(policy, [sequences[i] for i in order[start : start + batch]])
        total, tokens = total + float(loss), tokens + count
    sums = distributed.summed_numbers({"loss": total, "tokens": tokens})
    return sums["loss"] / max(sums["tokens"], 1.0)
