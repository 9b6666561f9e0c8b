"""Policy and value losses over masked tokens; each returns a sum, the caller divides by real tokens."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """PPO's clipped objective.

    Args:
        logprobs, old_logprobs, advantages: [batch, response_len] float32.
        mask: [batch, response_len] bool.
        clip: epsilon of the ratio's interval [1-eps, 1+eps].

    Returns:
        (sum over real tokens of -min(ratio*A, clip(ratio)*A), number of tokens where the clip binds).
        Source: Schulman et al. 2017, Eq. 7.
    """
    ratio = torch.where(mask, logprobs - old_logprobs, 0.0).exp()
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - clip, 1 + clip) * advantages
    loss = torch.where(mask, torch.maximum(plain, clipped), 0.0).sum()
    return loss, ((clipped > plain) & mask).sum()


def clipped_value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None
) -> tuple[Tensor, Tensor]:
    """0.5 * max((V - R)^2, (clip(V, V_old ± clip) - R)^2), summed over real tokens.

    Returns:
        (loss sum, number of tokens where the clip binds). `clip` None leaves values unclipped.
        Source: method of the Segment paper, appendix D (value clipping .25, bandit .2).
    """
    plain = (values - returns) ** 2
    if clip is None:
        return 0.5 * torch.where(mask, plain, 0.0).sum(), mask.new_zeros((), dtype=torch.long)
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    clipped = (bounded - returns) ** 2
    loss = 0.5 * torch.where(mask, torch.maximum(plain, clipped), 0.0).sum()
    return loss, ((clipped > plain) & mask).sum()
