"""Dials of the dialogue world: settings that a study varies, each of which moves one thing.

At its default a dial changes nothing: the world is version 3, bit for bit. Facts, prompts and, where the dial leaves
them alone, responses are drawn from the same streams at every setting, so two settings of one seed can be compared row
by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from rlhf_core.errors import RecipeError
from rlhf_core.typed import Checked, at_least

AGGREGATIONS = ("sum", "mean", "weighted")
"""Ways to make a response's true reward of its clauses' rewards."""


@dataclass(frozen=True)
class DialogueLength:
    """Sizes of requests and responses.

    Attributes:
        animals: number of animals that a prompt asks about.
        counts: requested attributes of each animal, drawn with equal chance.
        hard_count: the same in the `arena` split.
        blocks: factor on the noise of a response, on its most clauses and on its most words.
    """

    animals: int
    counts: tuple[int, ...]
    hard_count: int
    blocks: int


#: Length by the mean number of clauses of a response, roughly.
LENGTHS: Mapping[int, DialogueLength] = {
    4: DialogueLength(animals=1, counts=(1, 2, 2, 3), hard_count=3, blocks=1),
    8: DialogueLength(animals=2, counts=(2, 2, 3, 3), hard_count=3, blocks=3),
    40: DialogueLength(animals=6, counts=(4,), hard_count=4, blocks=20),
}
SHORT = LENGTHS[4]


@dataclass(frozen=True)
class Dials(Checked):
    """Dials of a world.

    Attributes:
        aggregation: one of `AGGREGATIONS`: the true reward of a response is the sum of its clause rewards, their
            mean, or their weighted mean.
        emphasis: weight of a requested fact in the weighted mean; every other clause weighs 1.
        clauses: mean number of clauses of a response, roughly: a key of `LENGTHS`.
    """

    aggregation: Literal["sum", "mean", "weighted"] = "sum"
    emphasis: Annotated[float, at_least(1)] = 1.0
    clauses: Literal[4, 8, 40] = 4

    def _check_together(self) -> None:
        if (self.aggregation == "weighted") != (self.emphasis > 1):
            raise RecipeError(
                f"emphasis is {self.emphasis:g} and aggregation '{self.aggregation}'; give 'weighted' an emphasis "
                "above 1, such as 3, and leave emphasis out otherwise"
            )

    @property
    def length(self) -> DialogueLength:
        return LENGTHS[self.clauses]

    def moved(self) -> dict[str, Any]:
        """Returns the dials that are not at their default, by name."""
        still = asdict(Dials())
        return {name: value for name, value in asdict(self).items() if value != still[name]}
