"""Estimators of KL(policy || reference) from sampled tokens; the penalty's coefficient with its adaptive controller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.choices import Choices
from rlhf_core.lazy import torch
from rlhf_core.policy_optimisation.advantages import on_real

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class KLEstimator:
    """An estimator of KL from d = log pi - log pi_ref of one sampled token.

    Args:
        of: d -> estimate, elementwise.
        has_gradient: whether its expected gradient is the divergence's; a penalty in the loss needs that.
    """

    of: Callable[[Tensor], Tensor]
    has_gradient: bool = True


def k1(d: Tensor) -> Tensor:
    """Returns d: unbiased, of either sign."""
    return d


def k2(d: Tensor) -> Tensor:
    """Returns d^2/2: biased, never negative."""
    return 0.5 * d**2


def k3(d: Tensor) -> Tensor:
    """Returns exp(-d) - 1 + d: unbiased, never negative."""
    return torch.expm1(-d) + d


#: Source: Schulman 2020.
KL_ESTIMATORS = Choices(
    "kl_estimator",
    {"k1": KLEstimator(k1, has_gradient=False), "k2": KLEstimator(k2), "k3": KLEstimator(k3)},
    needs=("of", "has_gradient"),
)


def kl_tokens(logprobs: Tensor, reference_logprobs: Tensor, mask: Tensor, estimator: str = "k1") -> Tensor:
    """Returns [batch, response_len] float32: the estimate of each token, 0 on padding, by a name in `KL_ESTIMATORS`."""
    logprobs, reference_logprobs = on_real(mask, logprobs, reference_logprobs)
    return KL_ESTIMATORS[estimator].of(logprobs - reference_logprobs)


class KLCoefficient:
    """The factor on the KL penalty: fixed, or moved towards a target KL by an adaptive KL controller.

    Args:
        value: where it starts.
        target: nats per response; None keeps the value.
        horizon: responses after which a constant full error has changed the value by about 20 percent.

    Source: Ziegler et al. 2019, §2.2.
    """

    def __init__(self, value: float, target: float | None = None, horizon: int = 10_000) -> None:
        self.value, self.target, self.horizon = value, target, horizon

    def update(self, kl: float, responses: int) -> None:
        """Multiplies by 1 + clip(kl/target - 1, ±.2) * responses/horizon, at least by a tenth.

        A batch of five horizons or more would otherwise turn the penalty off or into a reward. `kl` is in nats per
        response, the mean over the responses just seen.
        """
        if self.target is None:
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.value *= max(0.1, 1 + error * responses / self.horizon)

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value = state["value"]
