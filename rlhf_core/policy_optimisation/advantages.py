"""Advantage estimators over masked token rewards, float32."""

from __future__ import annotations

import torch
from torch import Tensor


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95) -> Tensor:
    """Generalised advantage estimates.

    A_t = delta_t + gamma*lam*A_{t+1}, delta_t = r_t + gamma*V_{t+1} - V_t, with V = 0 after the last real token.

    Args:
        rewards, values: [batch, response_len] float32, value of the state in which each token is chosen.
        mask: [batch, response_len] bool, a prefix of every row.
        gamma, lam: discount and trace decay.

    Returns:
        [batch, response_len] float32, 0 on padding. Source: Schulman et al. 2016, Eq. 16.
    """
    rewards, values = rewards.float() * mask, values.float() * mask
    advantages = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[0], device=rewards.device)
    next_value = torch.zeros_like(running)
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = (delta + gamma * lam * running) * mask[:, t]
        advantages[:, t] = running
        next_value = values[:, t]
    return advantages


def rewards_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """[batch, response_len] float32: discounted sum of rewards from each token on, 0 on padding."""
    rewards = rewards.float() * mask
    returns = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[0], device=rewards.device)
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = rewards[:, t] + gamma * running
        returns[:, t] = running
    return returns * mask


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean over real tokens; 0 when there are none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """(v - mean)/std over all real tokens of the batch (population std), 0 on padding; all zeros when constant."""
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    return torch.where(mask, (values - mean) * torch.rsqrt(variance + epsilon), 0.0)
