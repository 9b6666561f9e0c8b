"""A reward: components of score -> normalise -> shape -> credit, combined into one tensor per token.

The sum of the breakdown is the reward. Signal types are checked when the reward is built, so that what does not fit
together is refused before anything is trained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlhf_core.credit import Credit
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.normalisers import NoNormaliser, Normaliser
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.choices import Chain
from rlhf_core.signals import Signal, SignalType

if TYPE_CHECKING:
    from torch import Tensor


class Scorer(Protocol):
    """Turns rollouts into a raw signal of a declared type."""

    @property
    def gives(self) -> SignalType: ...

    def score(self, batch: RolloutBatch) -> Signal: ...


@runtime_checkable
class Stateful(Protocol):
    """A reward, or a part of one, that changes while a policy trains: running statistics, counters."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True)
class Part:
    """Rewards of one component for a batch.

    Attributes:
        raw: as scored.
        signal: normalised and shaped.
        tokens: [batch, response_len] float32, the signal placed on tokens and weighted.
    """

    raw: Signal
    signal: Signal
    tokens: Tensor


@dataclass(frozen=True)
class Component:
    """One named source of reward.

    Args:
        name: its name in the breakdown.
        scorer: gives the raw signal.
        credit: placement on tokens.
        normaliser: applied to the raw signal.
        shaping: applied to the normalised signal; its running statistics take in the batch where `update` says so.
        weight: factor on what is paid.
        references: [M] float32 reference rewards by prompt id, scored and normalised as this component does.

    Raises:
        RecipeError: when a step does not take the type that the step before gives.
    """

    name: str
    scorer: Scorer
    credit: Credit
    normaliser: Normaliser = NoNormaliser()  # noqa: RUF009 (frozen and stateless)
    shaping: Chain | None = None
    weight: float = 1.0
    references: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        gives = self.scorer.gives
        steps: list[tuple[str, tuple[SignalType, ...]]] = [("credit rule", (self.credit.takes,))]
        if self.shaping is not None:
            steps.insert(0, ("shaping", self.shaping.takes))
        if not isinstance(self.normaliser, NoNormaliser):
            steps.insert(0, ("normaliser", self.normaliser.takes))
        for step, takes in steps:
            if gives not in takes:
                expected = " or ".join(t.__name__ for t in takes)
                raise RecipeError(
                    f"component '{self.name}': the {step} takes {expected} but the read-out gives {gives.__name__}"
                )

    def __call__(self, batch: RolloutBatch, *, update: bool = True) -> Part:
        """Scores, normalises, shapes and places."""
        raw = self.scorer.score(batch)
        signal = self.normaliser(raw)
        if self.shaping is not None:
            known = replace(batch, references=self.references) if self.references else batch
            signal = self.shaping(signal, known, update=update)
        return Part(raw, signal, self.weight * self.credit.pay(signal, batch.responses))

    def stateful(self) -> dict[str, Stateful]:
        """Returns the steps that change while a policy trains, by name."""
        steps = {"scorer": self.scorer, "normaliser": self.normaliser, "shaping": self.shaping}
        return {name: step for name, step in steps.items() if isinstance(step, Stateful)}


#: Function from the parts of all components to the reward that each component pays: name -> [batch, response_len]
#: float32. The breakdown has the same names; a combination may gate a component by another component's signal or add
#: parts of its own.
Combination = Callable[[Mapping[str, Part], RolloutBatch], dict[str, "Tensor"]]


def add_up(parts: Mapping[str, Part], batch: RolloutBatch) -> dict[str, Tensor]:
    """Pays every component what it says."""
    return {name: part.tokens for name, part in parts.items()}


@dataclass(frozen=True)
class RewardOutput:
    """Rewards of all components for a batch.

    Attributes:
        total: [batch, response_len] float32, zero on padding.
        breakdown: the same shape by component; its sum is `total`. Clamping shows as 'clamp'.
        parts: rewards of each component.
    """

    total: Tensor
    breakdown: dict[str, Tensor]
    parts: dict[str, Part]

    @property
    def raw(self) -> dict[str, Signal]:
        return {name: part.raw for name, part in self.parts.items()}

    def sequence_totals(self) -> Tensor:
        """Returns [batch] float32: reward per response."""
        return self.total.sum(dim=1)


@dataclass(frozen=True)
class Reward:
    """Components combined and clamped per token.

    Args:
        components: at least one, with distinct names.
        clamp: largest absolute reward of a token, None for no limit.
        combination: what each component pays in the light of the others.
    """

    components: tuple[Component, ...]
    clamp: float | None = 10.0
    combination: Combination = add_up

    def __post_init__(self) -> None:
        names = [component.name for component in self.components]
        if not names or len(set(names)) != len(names):
            raise RecipeError(f"a reward needs at least one component and distinct names, got {names}")

    def __call__(self, batch: RolloutBatch, *, update: bool = True) -> RewardOutput:
        """Returns the reward of every response token.

        Args:
            batch: rollouts.
            update: False in evaluation, where running statistics stay as they are.

        Raises:
            NumericsError: a reward that is not finite; names the response.
        """
        parts = {component.name: component(batch, update=update) for component in self.components}
        breakdown = self.combination(parts, batch)
        total = torch.stack(list(breakdown.values())).sum(dim=0)
        if not torch.isfinite(total).all():
            row = int(torch.nonzero(~torch.isfinite(total).all(dim=1))[0])
            raise NumericsError(f"reward is not finite for response {row} of the batch: {batch.texts[row]!r:.200}")
        if self.clamp is not None:
            clamped = total.clamp(-self.clamp, self.clamp)
            breakdown = {**breakdown, "clamp": clamped - total}
            total = clamped
        return RewardOutput(total, breakdown, parts)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        return {c.name: {name: step.state_dict() for name, step in c.stateful().items()} for c in self.components}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
        for component in self.components:
            for name, step in component.stateful().items():
                step.load_state_dict(state[component.name][name])
