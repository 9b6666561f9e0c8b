"""Estimators of KL(policy || reference) from sampled tokens, and the coefficient of its penalty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def kl_tokens(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: str = "k1") -> Tensor:
    """[batch, response_len] float32 per-token estimate, 0 on padding.

    With d = log pi - log pi_ref: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d. Source: Schulman 2020.
    """
    d = torch.where(mask, logprobs.float() - reference_logprobs.float(), 0.0)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d**2
    if estimator == "k3":
        return torch.where(mask, torch.expm1(-d) + d, 0.0)
    raise RecipeError(f"unknown KL estimator '{estimator}'; known: k1, k2, k3")


class KLCoefficient:
    """The factor on the KL penalty: fixed, or moved towards a target KL.

    Args:
        value: where it starts.
        target: nats per response; None keeps the value.
        horizon: responses after which a constant full error has changed the value by about 20 percent.

    Source: Ziegler et al. 2019, §2.2.
    """

    def __init__(self, value: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.value, self.target, self.horizon = value, target, horizon

    def update(self, kl: float, responses: int) -> None:
        """Multiplies by 1 + clip(kl/target - 1, ±.2) * responses/horizon.

        Args:
            kl: nats per response, mean over the responses just seen.
            responses: how many those are.
        """
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= 1 + error * responses / self.horizon

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
