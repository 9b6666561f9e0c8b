"""A reward model's probability less one half, clipped by whether the solution is right. Source: RLMEC, §4.2."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from rlhf_core.errors import DataError
from rlhf_core.lazy import torch
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.steps import Elementwise
from rlhf_core.typed import between

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class OutcomeProbability(Elementwise):
    """sigma(r) - 1/2, in [0, high] for right solutions and in [low, 0] for wrong ones.

    What RLMEC does to a token's probability, done to a response's; a batch's records say which are `correct`.

    Args:
        low: the lowest reward of a wrong solution.
        high: the highest of a right one.
    """

    low: Annotated[float, between(-0.5, 0)] = -0.1
    high: Annotated[float, between(0, 0.5)] = 0.5
    needs_outcomes: ClassVar[bool] = True

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        outcomes = [record.get("correct") for record in batch.records]
        if not all(isinstance(outcome, bool) for outcome in outcomes):
            raise DataError(
                "a response is not known to be right or wrong",
                field="correct",
                remedy="Shape by outcome_probability where the policy learns from sampled solutions alone",
            )
        right = torch.tensor(outcomes, device=values.device)[:, None]
        centred = values.sigmoid() - 0.5
        return torch.where(right, centred.clamp(0.0, self.high), centred.clamp(self.low, 0.0))
