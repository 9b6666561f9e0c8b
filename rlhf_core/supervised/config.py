"""Settings of supervised runs, and of imitation beside a reward."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.errors import RecipeError
from rlhf_core.schedule import SCHEDULES, check_final_share, rate_share
from rlhf_core.typed import Checked, above, at_least, between, one_of

#: One of Adam's betas.
Beta = Annotated[float, between(0, 1, open_high=True)]
#: The two ways to say how long a supervised run is, of which exactly one is set.
DURATIONS = ("epochs", "updates")


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """Settings of a supervised run.

    Args:
        epochs: passes over the data; may be a fraction.
        updates: optimiser steps instead, over the data again and again; a run whose number of rows is not known
            beforehand then has as many as another one.
        batch: rows per optimiser step.
        microbatch: longest rows that fit into a forward pass; of shorter ones it takes as many tokens.
        learning_rate: peak of the schedule.
        warmup: share of the steps in which the rate rises from 0.
        schedule: 'constant', 'linear' or 'cosine' decay to `final_share` of the peak.
        final_share: where the decay ends.
        betas: Adam's betas.
        weight_decay: decoupled.
        max_grad_norm: gradient clipping norm.
        gradient_checkpointing: whether layers are computed again in the backward pass; None where they do not fit else.
    """

    epochs: Annotated[float, above(0)] | None = None
    updates: Annotated[int, at_least(1)] | None = None
    batch: Annotated[int, at_least(1)]
    microbatch: Annotated[int, at_least(1)]
    learning_rate: Annotated[float, above(0)]
    warmup: Annotated[float, between(0, 1)] = 0.03
    schedule: Annotated[str, one_of(SCHEDULES)] = "cosine"
    final_share: Annotated[float, between(0, 1)] = 0.0
    betas: tuple[Beta, Beta] = (0.9, 0.95)
    weight_decay: Annotated[float, at_least(0)] = 0.0
    max_grad_norm: Annotated[float, above(0)] = 1.0
    gradient_checkpointing: bool | None = None

    def _check_together(self) -> None:
        check_final_share(self.schedule, self.final_share, "schedule", "final_share")
        if (self.epochs is None) == (self.updates is None):
            stated = " and ".join(f"{name} is {getattr(self, name)}" for name in DURATIONS if getattr(self, name))
            raise RecipeError(
                f"{stated}; state one of them and remove the other one (null)"
                if stated
                else "'epochs' is missing; state it, or 'updates'"
            )

    def steps(self, rows: int) -> int:
        """Returns the optimiser steps of a run over a number of rows."""
        if self.updates is not None:
            return self.updates
        assert self.epochs is not None
        return max(1, round(self.epochs * rows / self.batch))

    def seen(self, rows: float) -> float:
        """Returns how many rows a run over a number of rows learns from, each counted as often as it is seen."""
        return self.updates * self.batch if self.updates is not None else (self.epochs or 0.0) * rows

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
        right: whether right solutions are imitated as they are, too, every token at phi * gamma.
    """

    batch: Annotated[int, at_least(1)]
    coefficient: Annotated[float, above(0)] = 1.0
    gamma: Annotated[float, at_least(0)] = 1.0
    phi: Annotated[float, at_least(0)] = 0.5
    right: bool = False
