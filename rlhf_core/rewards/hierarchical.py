"""Hierarchical rewards: aspects are paid only where the holistic reward clears a threshold.

Below the threshold a response is paid w_h h on its last token and nothing else; from it on also what its aspects pay,
which is never below 0. So every total above the gate exceeds every total below it, exactly, in float32: the gate asks
the *paid* w_h h, adding what is not negative never lowers a float, and nothing else is paid below. KL is added by the
optimiser afterwards and may turn pairs around; `gate_metrics` counts them. Source: ALARM, §2.3 and §3.3.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rewards.composition import Part, RewardOutput
from rlhf_core.rollout import RolloutBatch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HierarchicalGate:
    """A combination: the component `by` is always paid, the others where it reaches the threshold.

    Args:
        by: name of the holistic component: one value per response, paid on its last token.
        threshold: of its normalised value, before the weight; h < threshold (strictly) is below.
        weight: the holistic component's.

    Raises:
        RecipeError: a threshold that is not finite, or a weight that would turn the order around.
    """

    by: str
    threshold: float
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise RecipeError(f"gate: threshold is {self.threshold}; it must be a finite number")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise RecipeError(f"gate: the weight of '{self.by}' is {self.weight}; it must be a finite number above 0")

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
    """Refuses a threshold that is neither a number nor a quantile.

    Raises:
        RecipeError: says what it must be.
    """
    quantile = stated.get("quantile") if isinstance(stated, Mapping) else 0.5
    if (isinstance(stated, Mapping) and set(stated) != {"quantile"}) or quantile is None or not 0 < quantile < 1:
        raise RecipeError("state a number, or {quantile: q} with q in (0, 1)")


def resolve_threshold(stated: float | Mapping[str, float], holistic: Tensor | None) -> float:
    """Returns the threshold of the normalised holistic reward.

    Args:
        stated: the number itself, or `{quantile: q}` of the initial policy's pure samples D_p.
        holistic: [n] normalised holistic rewards of D_p, None where they are not known.

    Raises:
        RecipeError: a quantile outside (0, 1), or one without D_p.
    """
    try:
        check_threshold(stated)
    except RecipeError as error:
        raise RecipeError(f"gate: threshold is {stated}; {error}") from None
    if not isinstance(stated, Mapping):
        return float(stated)
    if holistic is None or not len(holistic):
        raise RecipeError("gate: a quantile threshold is one of the selection's pure samples: name a 'selection'")
    return float(torch.quantile(holistic.double(), float(stated["quantile"])))


def gate_metrics(reward: RewardOutput, gate: HierarchicalGate, penalty: Tensor) -> dict[str, float]:
    """Returns the share of open gates, and of orders that KL changed.

    Args:
        reward: of a rollout batch.
        gate: its combination.
        penalty: [batch] float32, KL penalty of each response, as it is subtracted.

    Returns:
        share_above; pairs of a response above and one below the gate; violations, the pairs whose totals after KL no
        longer stand in that order, and violation_share of the pairs (0 without any).
    """
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
