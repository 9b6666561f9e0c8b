"""Combinations of a reward's components, set in a recipe: `{kind: sum}` or `{kind: gate, by: ..., threshold: ...}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from rlhf_core.choices import Choices
from rlhf_core.credit import CREDITS
from rlhf_core.errors import RecipeError, hint
from rlhf_core.rewards import composition
from rlhf_core.rewards.composition import add_up
from rlhf_core.rewards.hierarchical import HierarchicalGate, check_threshold, resolve_threshold
from rlhf_core.signals import Sequence as SequenceSignal
from rlhf_core.typed import Checked, accepted_by

if TYPE_CHECKING:
    from torch import Tensor


class Combination(Protocol):
    """A combination as a recipe states it.

    Attributes:
        shapes_aspects: whether an aspect that may be negative is shaped by a sigmoid unless the recipe shapes it.
    """

    shapes_aspects: ClassVar[bool]

    def check(self, components: Sequence[Any], clamp: float | None) -> None:
        """Refuses components (`rlhf_core.recipe.ComponentRecipe`) that it cannot combine.

        Raises:
            RecipeError: says which, and why.
        """

    def build(self, weights: Mapping[str, float], pure: Tensor | None) -> composition.Combination:
        """Returns the function that combines the components' rewards.

        Args:
            weights: of the components by name.
            pure: [n] normalised holistic rewards of the selection's pure samples, None where they are not known.
        """


@dataclass(frozen=True)
class WeightedSum(Checked):
    """Every component pays what it says."""

    shapes_aspects: ClassVar[bool] = False

    def check(self, components: Sequence[Any], clamp: float | None) -> None:
        """Refuses nothing: whatever is paid to tokens adds up."""

    def build(self, weights: Mapping[str, float], pure: Tensor | None) -> composition.Combination:
        return add_up


@dataclass(frozen=True)
class Gate(Checked):
    """The holistic component is always paid, the others where it reaches a threshold (ALARM).

    Args:
        by: name of the holistic component.
        threshold: of its normalised value: a number, or {quantile: q} of the initial policy's pure samples.
    """

    by: str
    threshold: Annotated[float | Mapping[str, float], accepted_by(check_threshold)]
    shapes_aspects: ClassVar[bool] = True

    def check(self, components: Sequence[Any], clamp: float | None) -> None:
        named = {part.name: part for part in components}
        if self.by not in named:
            raise RecipeError(f"the gate is by '{self.by}'{hint(self.by, named)}")
        holistic = named[self.by]
        placed = holistic.credit is not None and CREDITS[holistic.credit]
        once = placed and placed.takes is SequenceSignal and placed.gain == "one"
        if holistic.aspect is not None or holistic.signal is not SequenceSignal or not once:
            raise RecipeError(
                f"the gate asks '{self.by}' for one value per response: it must be a model or function that gives one, "
                "as read-out 'aggregate' does, with credit 'last_token'"
            )
        HierarchicalGate(self.by, 0.0, holistic.weight)
        if len(named) < 2 or any(part.weight <= 0 for part in components):
            raise RecipeError("a gate needs at least one component besides the holistic one, all with positive weights")
        if clamp is not None:
            raise RecipeError(f"a clamp of {clamp} per token can turn the gate's order around: give clamp: null")

    def build(self, weights: Mapping[str, float], pure: Tensor | None) -> composition.Combination:
        return HierarchicalGate(self.by, resolve_threshold(self.threshold, pure), weights[self.by])


COMBINATIONS: Choices[type[Any]] = Choices(
    "combination", {"sum": WeightedSum, "gate": Gate}, needs=("shapes_aspects", "check", "build")
)
