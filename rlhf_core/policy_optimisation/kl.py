"""Estimators of KL(policy || reference) from sampled tokens. k1, k2, k3 as named by Schulman (2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from rlhf_core.errors import RecipeError


def kl_tokens(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: str = "k1") -> Tensor:
    """[batch, response_len] float32 per-token estimate, 0 on padding.

    With d = log pi - log pi_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d.
    """
    d = torch.where(mask, logprobs.float() - reference_logprobs.float(), 0.0)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d**2
    if estimator == "k3":
        return torch.where(mask, torch.expm1(-d) + d, 0.0)
    raise RecipeError(f"unknown KL estimator '{estimator}'; known: k1, k2, k3")
