"""Settings of a sentence-boundary tagger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.errors import RecipeError
from rlhf_core.typed import Checked, at_least, between


@dataclass(frozen=True)
class TaggerConfig(Checked):
    """Size of a tagger.

    Args:
        layers: 1, 3 or 9 in the paper.
        hidden: width.
        heads: attention heads.
        vocabulary: tokens of its byte-level tokenizer.
        window: tokens that it sees at once.
        dropout: while training.
        drop_punctuation: share of training windows without punctuation, so that words count, too.
    """

    layers: Annotated[int, at_least(1)] = 3
    hidden: Annotated[int, at_least(1)] = 96
    heads: Annotated[int, at_least(1)] = 4
    vocabulary: Annotated[int, at_least(1)] = 1024
    window: Annotated[int, at_least(8)] = 126
    dropout: Annotated[float, between(0, 1, open_high=True)] = 0.1
    drop_punctuation: Annotated[float, between(0, 1, open_high=True)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise RecipeError(f"hidden is {self.hidden}; it must be a multiple of the {self.heads} heads")
