"""Policy and value losses, one number per token (or pair) and 0 on padding; the caller sums and divides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class TokenLoss:
    """A loss before it is averaged.

    Attributes:
        losses: [batch, response_len] float32, 0 on padding.
        clipped: [batch, response_len] bool, where a clip binds.
    """

    losses: Tensor
    clipped: Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """[batch, response_len] float32: pi / pi_old, 1 on padding."""
    return torch.where(mask, logprobs - old_logprobs, 0.0).exp()


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip: float
) -> TokenLoss:
    """PPO's clipped objective, -min(ratio*A, clip(ratio)*A).

    Args:
        logprobs, old_logprobs, advantages: [batch, response_len] float32.
        mask: [batch, response_len] bool.
        clip: epsilon of the ratio's interval [1-eps, 1+eps].

    Source: Schulman et al. 2017, Eq. 7.
    """
    ratio = importance_ratio(logprobs, old_logprobs, mask)
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - clip, 1 + clip) * advantages
    return TokenLoss(torch.where(mask, torch.maximum(plain, clipped), 0.0), (clipped > plain) & mask)


def policy_gradient(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """-A * log pi: REINFORCE, and A2C where the advantages are a critic's.

    Args:
        logprobs, advantages: [batch, response_len] float32.
        mask: [batch, response_len] bool.

    Source: Williams 1992; Mnih et al. 2016.
    """
    return TokenLoss(torch.where(mask, -advantages.detach() * logprobs, 0.0), torch.zeros_like(mask))


def rlmec_objective(
    logprobs: Tensor, reference_logprobs: Tensor, rewards: Tensor, mask: Tensor, clip: float
) -> TokenLoss:
    """-c * log pi with the detached coefficient c = min(r*R, clip(r)*R), r = pi / pi_ref.

    Args:
        logprobs, reference_logprobs, rewards: [batch, response_len] float32.
        mask: [batch, response_len] bool.
        clip: epsilon of the ratio's interval [1-eps, 1+eps].

    Source: RLMEC, Eq. 5 to 7; the caller divides by `nonzero_rewards`.
    """
    with torch.no_grad():
        ratio = importance_ratio(logprobs, reference_logprobs, mask)
        plain, clipped = ratio * rewards, ratio.clamp(1 - clip, 1 + clip) * rewards
        coefficient = torch.minimum(plain, clipped)
    return TokenLoss(torch.where(mask, -coefficient * logprobs, 0.0), (clipped < plain) & mask)


def nonzero_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Scalar int64, at least 1: real tokens with a reward other than 0."""
    return ((rewards != 0) & mask).sum().clamp(min=1)


def preference_loss(logratios: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """DPO's loss of pairs that the policy itself has sampled, the better one first.

    Args:
        logratios: [pairs, 2] float32, log pi - log pi_ref summed over each response.
        beta: temperature.

    Returns:
        (-log sigmoid(beta * difference) [pairs], implicit reward margin [pairs], detached).
        Source: PAR, Algorithm 6; Rafailov et al. 2023, Eq. 7.
    """
    margin = beta * (logratios[:, 0] - logratios[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin.detach()


def ordered_pairs(scores: Tensor, groups: Tensor, min_margin: float = 0.0) -> Tensor:
    """[pairs, 2] int64: rows (better, worse) of every group of two; equal scores keep the lower row first.

    Args:
        scores: [batch] float32, one per response.
        groups: [batch] int64, each value exactly twice.
        min_margin: groups whose scores differ by less are left out.
    """
    order = torch.argsort(groups, stable=True).view(-1, 2)
    swap = scores[order[:, 1]] > scores[order[:, 0]]
    pairs = torch.where(swap[:, None], order.flip(1), order)
    return pairs[~(scores[pairs[:, 0]] - scores[pairs[:, 1]] < min_margin)]


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None, coefficient: float = 0.5
) -> TokenLoss:
    """coefficient * max((V - R)^2, (clip(V, V_old ± clip) - R)^2).

    Args:
        values, old_values, returns: [batch, response_len] float32.
        mask: [batch, response_len] bool.
        clip: largest change of a value that is credited; None leaves values unclipped.
        coefficient: 1/2 in Segment (appendix D), 1 in PAR (Algorithm 5).
    """
    plain = (values - returns) ** 2
    if clip is None:
        return TokenLoss(coefficient * torch.where(mask, plain, 0.0), torch.zeros_like(mask))
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    clipped = (bounded - returns) ** 2
    return TokenLoss(coefficient * torch.where(mask, torch.maximum(plain, clipped), 0.0), (clipped > plain) & mask)
