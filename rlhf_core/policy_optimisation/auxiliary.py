"""Imitation beside a reward: a further term of the policy's loss that brings its own batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.policy_optimisation.sources import Passes
from rlhf_core.supervised.objectives import weighted_nll


class Imitation:
    """Weighted negative log-likelihood of given responses, divided by the number of weighted tokens.

    Args:
        sequences: prompts and the responses to imitate.
        weights: one number per response token; tokens of weight 0 do not count.
        batch: sequences per optimiser step.
        microbatch: sequences per forward pass.
        coefficient: factor on the loss.
        seed: of their order.

    Source: RLMEC, Eq. 8 and 9.
    """

    name = "imitation_loss"

    def __init__(
        self,
        sequences: Sequence[EncodedSequence],
        weights: Sequence[Sequence[float]],
        *,
        batch: int,
        microbatch: int,
        coefficient: float = 1.0,
        seed: int = 0,
    ) -> None:
        if batch < 1 or microbatch < 1:
            raise RecipeError(f"batch is {batch} and microbatch {microbatch}; both must be at least 1")
        for i, (sequence, row) in enumerate(zip(sequences, weights, strict=True)):
            if len(sequence.response) != len(row):
                raise DataError(f"{len(row)} weights for {len(sequence.response)} response tokens", row=i + 1)
        self.sequences, self.weights = sequences, weights
        self.microbatch, self.coefficient = microbatch, coefficient
        self.passes = Passes(len(sequences), batch, f"imitation-{seed}")

    def parts(self, policy: Policy) -> Iterator[Tensor]:
        """Yields the loss of the next batch as scalars that sum to it, over ranks too, one per forward pass."""
        rows = self.passes.next()
        counted = max(1, sum(weight != 0 for i in rows for weight in self.weights[i]))
        for chosen, counts in distributed.shares(rows, self.microbatch):
            sequences, weights = ([side[i] for i in chosen] for side in (self.sequences, self.weights))
            yield (self.coefficient if counts else 0.0) * weighted_nll(policy, sequences, weights) / counted

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["passes"])
