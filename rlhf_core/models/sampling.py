"""Settings of sampling: how responses are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.errors import RecipeError
from rlhf_core.models.engines import DEFAULT_ENGINE, ENGINES
from rlhf_core.typed import Checked, Range, at_least, between, one_of

#: Temperatures of sampling: below the smallest and above the largest one, logits are no longer told apart.
Temperature = Annotated[
    float, Range("0 for greedy, or from 0.01 to 100", lambda value: value == 0 or 0.01 <= value <= 100)
]


@dataclass(frozen=True)
class Sampling(Checked):
    """Sampling settings for responses.

    Args:
        max_new_tokens: longest response, EOS included.
        temperature: 0 is greedy; others are from 0.01 to 100.
        top_p: nucleus mass in (0, 1], 1 keeps all.
        top_k: number of most likely tokens kept, 0 keeps all.
        engine: one of `ENGINES`, which samples.
    """

    max_new_tokens: Annotated[int, at_least(1)]
    temperature: Temperature = 1.0
    top_p: Annotated[float, between(0, 1, open_low=True)] = 1.0
    top_k: Annotated[int, at_least(0)] = 0
    engine: Annotated[str, one_of(ENGINES)] = DEFAULT_ENGINE

    def refuse_copies(self, answers: int, name: str) -> None:
        """Refuses to draw several answers to a prompt greedily: they would all be the same.

        Args:
            answers: to each prompt.
            name: of the setting that asks for them.

        Raises:
            RecipeError: names both settings.
        """
        alone = "temperature is 0" if self.temperature == 0 else "top_k is 1" if self.top_k == 1 else ""
        if answers > 1 and alone:
            raise RecipeError(
                f"{name} is {answers}, but sampling.{alone}: all answers to a prompt would be the same; sample "
                "them at a temperature above 0 and without top_k 1"
            )
