"""Settings of supervised runs, and of imitation beside a reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.schedule import SCHEDULES, rate_share
from rlhf_core.typed import Checked, above, at_least, between, one_of

#: One of Adam's betas.
Beta = Annotated[float, between(0, 1, open_high=True)]


@dataclass(frozen=True)
class TrainingConfig(Checked):
    """Settings of a supervised run.

    Args:
        epochs: passes over the data; may be a fraction.
        batch: rows per optimiser step.
        microbatch: rows per forward pass.
        learning_rate: peak of the schedule.
        warmup: share of the steps in which the rate rises from 0.
        schedule: 'constant', 'linear' or 'cosine' decay to `final_share` of the peak.
        final_share: where the decay ends.
        betas: Adam's betas.
        weight_decay: decoupled.
        max_grad_norm: gradient clipping norm.
    """

    epochs: Annotated[float, above(0)]
    batch: Annotated[int, at_least(1)]
    microbatch: Annotated[int, at_least(1)]
    learning_rate: Annotated[float, above(0)]
    warmup: Annotated[float, between(0, 1)] = 0.03
    schedule: Annotated[str, one_of(SCHEDULES)] = "cosine"
    final_share: Annotated[float, between(0, 1)] = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, at_least(0)] = 0.0
    max_grad_norm: Annotated[float, above(0)] = 1.0

    def rate(self, step: int, steps: int) -> float:
        """Returns the share of the peak learning rate at `step` (from 0) of `steps`."""
        return rate_share(step, steps, warmup=self.warmup, schedule=self.schedule, final_share=self.final_share)


@dataclass(frozen=True)
class ImitationSettings(Checked):
    """Imitation of rewrites beside a reward.

    Args:
        batch: rewrites per optimiser step.
        coefficient: factor on the loss.
        gamma: weight of tokens that the edit made.
        phi: the other tokens weigh phi * gamma.
    """

    batch: Annotated[int, at_least(1)]
    coefficient: Annotated[float, above(0)] = 1.0
    gamma: Annotated[float, at_least(0)] = 1.0
    phi: Annotated[float, at_least(0)] = 0.5
