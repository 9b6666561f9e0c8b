"""A reward: components of score -> normalise -> shape -> credit, combined into one tensor per token.

The sum of the breakdown is the reward. Signal types are checked when the reward is built, so that what does
not fit together is refused before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rlhf_core.credit import Credit
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.normalisers import NoNormaliser, Normaliser
from rlhf_core.rewards.signals import Signal, SignalType
from rlhf_core.rollout import RolloutBatch


class Scorer(Protocol):
    """Turns rollouts into a raw signal of a declared type."""

    @property
    def gives(self) -> SignalType: ...

    def score(self, batch: RolloutBatch) -> Signal: ...


#: A shaping takes and gives the same signal type; it may look at the batch (cached references).
Shaping = Callable[[Signal, RolloutBatch], Signal]


@dataclass(frozen=True)
class Component:
    """One named source of reward.

    Args:
        name: its name in the breakdown.
        scorer: raw signal.
        credit: placement on tokens.
        normaliser: applied to the raw signal.
        shaping: applied to the normalised signal.
        weight: factor on what is paid.

    Raises:
        RecipeError: when a step does not take the type that the step before gives.
    """

    name: str
    scorer: Scorer
    credit: Credit
    normaliser: Normaliser = NoNormaliser()  # noqa: RUF009 (frozen and stateless)
    shaping: Shaping | None = None
    weight: float = 1.0

    def __post_init__(self) -> None:
        gives = self.scorer.gives
        if not isinstance(self.normaliser, NoNormaliser) and gives not in self.normaliser.takes:
            expected = " or ".join(t.__name__ for t in self.normaliser.takes)
            raise RecipeError(
                f"component '{self.name}': the normaliser takes {expected} but the read-out gives {gives.__name__}"
            )
        if gives is not self.credit.takes:
            raise RecipeError(
                f"component '{self.name}': the credit rule takes {self.credit.takes.__name__} but the read-out gives "
                f"{gives.__name__}"
            )

    def __call__(self, batch: RolloutBatch) -> tuple[Signal, Tensor]:
        """Raw signal and the paid tokens [batch, response_len] float32."""
        raw = self.scorer.score(batch)
        signal = self.normaliser(raw)
        if self.shaping is not None:
            signal = self.shaping(signal, batch)
        return raw, self.weight * self.credit.pay(signal, batch.responses)


@dataclass(frozen=True)
class RewardOutput:
    """What a reward says of a batch.

    Attributes:
        total: [batch, response_len] float32, zero on padding.
        breakdown: the same shape by component; its sum is `total`. Clamping shows as 'clamp'.
        raw: raw signals by component, before normalisation.
    """

    total: Tensor
    breakdown: dict[str, Tensor]
    raw: dict[str, Signal]

    def sequence_totals(self) -> Tensor:
        """[batch] float32: reward per response."""
        return self.total.sum(dim=1)


@dataclass(frozen=True)
class Reward:
    """Sum of components, clamped per token.

    Args:
        components: at least one, with distinct names.
        clamp: largest absolute reward of a token, None for no limit.
    """

    components: tuple[Component, ...]
    clamp: float | None = 10.0

    def __post_init__(self) -> None:
        names = [component.name for component in self.components]
        if not names or len(set(names)) != len(names):
            raise RecipeError(f"a reward needs at least one component and distinct names, got {names}")

    def __call__(self, batch: RolloutBatch) -> RewardOutput:
        breakdown: dict[str, Tensor] = {}
        raw: dict[str, Signal] = {}
        for component in self.components:
            raw[component.name], breakdown[component.name] = component(batch)
        total = torch.stack(list(breakdown.values())).sum(dim=0)
        if not torch.isfinite(total).all():
            row = int(torch.nonzero(~torch.isfinite(total).all(dim=1))[0])
            raise NumericsError(f"reward is not finite for response {row} of the batch: {batch.texts[row]!r:.200}")
        if self.clamp is not None:
            clamped = total.clamp(-self.clamp, self.clamp)
            breakdown["clamp"] = clamped - total
            total = clamped
        return RewardOutput(total, breakdown, raw)

    def _changing(self) -> dict[str, Any]:
        """The steps of the components that change while training, by place."""
        steps = {
            f"{component.name}/{step}": getattr(component, step)
            for component in self.components
            for step in ("scorer", "normaliser", "shaping")
        }
        return {
            name: step
            for name, step in steps.items()
            if hasattr(step, "state_dict") and hasattr(step, "load_state_dict")
        }

    def state_dict(self) -> dict[str, Any]:
        """Counters and running statistics of the components."""
        return {name: step.state_dict() for name, step in self._changing().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, step in self._changing().items():
            step.load_state_dict(state[name])
