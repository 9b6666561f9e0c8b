"""Length: tokens of the response over the mean of the training set (ALARM, Appendix A.3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.errors import RecipeError

_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Length:
    """Words and punctuation marks of the response over `mean_tokens`; always positive.

    Attributes:
        mean_tokens: mean count of the training responses.
    """

    mean_tokens: float = 1.0
    name: str = "length"
    density: Density = Density.SEQUENCE
    higher_is_better: bool = True

    def __post_init__(self) -> None:
        if not self.mean_tokens > 0:
            raise RecipeError(f"aspect 'length': mean_tokens is {self.mean_tokens}; it must be above 0")

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [Scored(((0, len(text)),), (len(_TOKEN.findall(text)) / self.mean_tokens,)) for text in responses]
