"""Combinations of a reward's components, set in a recipe: `{kind: sum}` or `{kind: gate, by: ..., threshold: ...}`.

The gate makes rewards hierarchical: below the threshold a response is paid w_h h on its last token and nothing else;
from it on also what its aspects pay, which is never below 0. So every total above the gate exceeds every total below
it, exactly, in float32: the gate asks the *paid* w_h h, adding what is not negative never lowers a float, and nothing
else is paid below. KL is added by the optimiser afterwards and may turn pairs around; `gate_metrics` counts them.
Source: ALARM, §2.3 and §3.3.

A combination says by `shapes_aspects` whether an aspect that may be negative is shaped by a sigmoid unless the recipe
shapes it. Its `check` refuses components (`rlhf_core.recipe.ComponentRecipe`) that it cannot combine; `build` gets the
components' weights by name and the [n] normalised holistic rewards of the selection's pure samples, None if not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.credit import CREDITS
from rlhf_core.errors import NumericsError, RecipeError, hint
from rlhf_core.lazy import torch
from rlhf_core.rewards import composition
from rlhf_core.rewards.composition import Part, RewardOutput, add_up
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence as SequenceSignal
from rlhf_core.typed import Checked, accepted_by

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class WeightedSum(Checked):
    """Every component pays what it says."""

    shapes_aspects: ClassVar[bool] = False

    def check(self, components: Sequence[Any], clamp: float | None) -> None:
        pass

    def build(self, weights: Mapping[str, float], pure: Tensor | None) -> composition.Combination:
        return add_up


@dataclass(frozen=True)
class HierarchicalGate:
    """A combination: the component `by` is always paid, the others where it reaches the threshold.

    Args:
        by: name of the holistic component: one value per response, paid on its last token.
        threshold: of its normalised value, before the weight; h < threshold (strictly) is below.
        weight: the holistic component's.
    """

    by: str
    threshold: float
    weight: float = 1.0

    def above(self, parts: Mapping[str, Part]) -> Tensor:
        """Returns [batch] bool: whose holistic reward reaches the threshold."""
        paid = parts[self.by].tokens.sum(dim=1)
        least = torch.tensor(self.threshold, dtype=torch.float32) * self.weight
        return paid >= least.to(paid.device)

    def __call__(self, parts: Mapping[str, Part], batch: RolloutBatch) -> dict[str, Tensor]:
        """Returns the token rewards of each component, [batch, response_len] float32 by name.

        Raises:
            NumericsError: a component pays less than 0 above the gate, which would break the hierarchy.
        """
        above = self.above(parts)[:, None]
        paid = {}
        for name, part in parts.items():
            if name == self.by:
                paid[name] = part.tokens
                continue
            paid[name] = torch.where(above, part.tokens, 0.0)
            if bool((paid[name] < 0).any()):
                row = int(torch.nonzero((paid[name] < 0).any(dim=1))[0])
                raise NumericsError(
                    f"gate: component '{name}' pays {float(paid[name][row].min()):g} above the gate, where it must not "
                    f"be negative; give it a shaping such as {{kind: sigmoid}}. Response: {batch.texts[row]!r:.200}"
                )
        return paid


def check_threshold(stated: float | Mapping[str, float]) -> None:
    """Refuses a threshold that is neither a number nor a quantile."""
    quantile = stated.get("quantile") if isinstance(stated, Mapping) else 0.5
    if (isinstance(stated, Mapping) and set(stated) != {"quantile"}) or quantile is None or not 0 < quantile < 1:
        raise RecipeError("state a number, or {quantile: q} with q in (0, 1)")


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
        if len(named) < 2 or any(part.weight <= 0 for part in components):
            raise RecipeError("a gate needs at least one component besides the holistic one, all with positive weights")
        if clamp is not None:
            raise RecipeError(f"a clamp of {clamp} per token can turn the gate's order around: give clamp: null")

    def build(self, weights: Mapping[str, float], pure: Tensor | None) -> composition.Combination:
        """Returns the gate; a quantile is that of `pure`.

        Raises:
            RecipeError: a quantile, and no pure samples.
        """
        threshold = self.threshold
        if isinstance(threshold, Mapping):
            if pure is None or not len(pure):
                raise RecipeError(
                    "gate: a quantile threshold is one of the selection's pure samples: name a 'selection'"
                )
            threshold = float(torch.quantile(pure.double(), float(threshold["quantile"])))
        return HierarchicalGate(self.by, float(threshold), weights[self.by])


def gate_metrics(reward: RewardOutput, gate: HierarchicalGate, penalty: Tensor) -> dict[str, float]:
    """Returns the share of open gates; pairs of a response above and one below the gate; and `violations`, the pairs
    whose totals are in another order after KL, whose `penalty` [batch] float32 is subtracted."""
    above = gate.above(reward.parts)
    after = reward.sequence_totals() - penalty
    turned = after[above][:, None] <= after[~above][None, :]
    pairs = turned.numel()
    violations = int(turned.sum())
    return {
        "gate/share_above": float(above.float().mean()),
        "gate/pairs": float(pairs),
        "gate/violations": float(violations),
        "gate/violation_share": violations / pairs if pairs else 0.0,
    }


COMBINATIONS: Choices[type[Any]] = Choices(
    "combination", {"sum": WeightedSum, "gate": Gate}, needs=("shapes_aspects", "check", "build")
)
