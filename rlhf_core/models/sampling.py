"""Settings of sampling: how responses are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.typed import Checked, Range, at_least, between

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
    """

    max_new_tokens: Annotated[int, at_least(1)]
    temperature: Temperature = 1.0
    top_p: Annotated[float, between(0, 1, open_low=True)] = 1.0
    top_k: Annotated[int, at_least(0)] = 0
