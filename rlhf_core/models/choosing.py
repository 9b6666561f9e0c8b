"""Choosing of tokens: temperature, top-k, top-p, and a uniform random number per token; imports torch alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlhf_core.models.sampling import Sampling


def truncate(scores: Tensor, sampling: Sampling) -> Tensor:
    """Returns log-scores with what top-k and top-p exclude set to -inf; scores are already divided by temperature."""
    if sampling.top_k and sampling.top_k < scores.shape[-1]:
        kth = scores.topk(sampling.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, -torch.inf)
    if sampling.top_p < 1:
        ordered, order = scores.sort(dim=-1, descending=True)
        p = ordered.softmax(dim=-1)
        drop = p.cumsum(dim=-1) - p >= sampling.top_p
        scores = scores.masked_fill(drop.scatter(1, order, drop), -torch.inf)
    return scores


def choose(logits: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Returns [batch] int64: one token per row, by inverting the cumulative distribution at `uniform` [batch]."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    scores = truncate(logits / sampling.temperature, sampling)
    cumulative = scores.softmax(dim=-1).cumsum(dim=-1)
    target = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, target, right=True).squeeze(1).clamp(max=logits.shape[-1] - 1)


def measure(logits: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log-probability of the chosen tokens and the entropy in nats, [batch] each, at temperature 1 and
    without truncation."""
    log_p = logits.log_softmax(dim=-1)
    # a token that cannot come adds 0 to the entropy, not 0 times infinity
    entropy = -(log_p.exp() * log_p.clamp(min=torch.finfo(log_p.dtype).min)).sum(dim=-1)
    return log_p.gather(1, chosen[:, None]).squeeze(1), entropy
