"""A reward of the user's own: any Python callable, named as `package.module:name`.

    def brevity(batch: RolloutBatch) -> torch.Tensor:        # one value per response
        return -batch.responses.lengths.float() / 50

Naming it in a recipe is asking for that module to be imported: recipes are code as far as trust goes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core import distributed
from rlhf_core.choices import Choices
from rlhf_core.errors import NumericsError
from rlhf_core.lazy import torch
from rlhf_core.named import import_named
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Sequence, Tokens

if TYPE_CHECKING:
    from torch import Tensor

#: What a callable may give, by the word that a recipe uses.
GIVES: Choices[type[Sequence] | type[Tokens]] = Choices("signal", {"sequence": Sequence, "tokens": Tokens})


@dataclass(frozen=True)
class FunctionScorer:
    """Scores by a callable.

    Args:
        function: rollouts to [batch] (`gives` Sequence) or [batch, response_len] (`gives` Tokens).
        gives: the type of its signal.
    """

    function: Callable[[RolloutBatch], Tensor]
    gives: type[Sequence] | type[Tokens]

    def score(self, batch: RolloutBatch) -> Sequence | Tokens:
        """Returns the callable's values as a float32 signal; padding is paid nothing, whatever it returns there.

        Raises:
            NumericsError: values of another shape than declared.
        """
        found = distributed.on_main(lambda: torch.as_tensor(self.function(batch)).float().cpu())
        values = found.to(batch.prompt_ids.device)
        mask = batch.responses.mask
        expected = (len(batch),) if self.gives is Sequence else tuple(mask.shape)
        if tuple(values.shape) != expected:
            name = getattr(self.function, "__name__", str(self.function))
            raise NumericsError(
                f"reward function {name} returned shape {tuple(values.shape)}, expected {expected} for "
                f"'{self.gives.__name__.lower()}'"
            )
        return Sequence(values) if self.gives is Sequence else Tokens(torch.where(mask, values, 0.0))


def build_function_scorer(name: str, gives: str) -> FunctionScorer:
    """Returns the scorer of a named callable."""
    return FunctionScorer(import_named(name, "reward function"), GIVES[gives])
