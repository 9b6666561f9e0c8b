"""Length: tokens of the response over the mean of the training set (ALARM, Appendix A.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.aspects.aspect import Density, Scored
from rlhf_core.aspects.tokens import Offsets, groups, words
from rlhf_core.typed import Checked, above


@dataclass(frozen=True)
class Length(Checked):
    """Tokens of the response over `mean_tokens`; never negative.

    Attributes:
        mean_tokens: mean count of the training responses.
        offsets: character spans of the tokens of a text; words and marks without one.
    """

    mean_tokens: Annotated[float, above(0)] = 1.0
    offsets: Offsets | None = None
    name: str = "length"
    density: Density = Density.SEQUENCE
    higher_is_better: bool = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        counts = [len(groups((self.offsets or words)(text))) for text in responses]
        return [Scored(((0, len(t)),), (n / self.mean_tokens,)) for t, n in zip(responses, counts, strict=True)]
