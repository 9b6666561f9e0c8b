"""Segmenters of a user's own, which declare the same needs as the project's `entropy` and `sat`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rlhf_core.rollout import Responses
from rlhf_core.segmentation.segments import Segmentation, dense_cover, from_starts
from rlhf_core.typed import Checked


@dataclass(frozen=True)
class StatedSurprises(Checked):
    """Surprises as a file states them: by names of the scale's cutoffs."""

    low: str
    high: str


@dataclass(frozen=True)
class Surprises(Checked):
    """Segments that start at tokens whose entropy is between two cutoffs, in nats."""

    low: float
    high: float
    needs_entropies: ClassVar[bool] = True
    needs_spelling: ClassVar[bool] = False
    stated: ClassVar[type[Any]] = StatedSurprises
    cutoffs: ClassVar[tuple[str, ...]] = ("low", "high")

    def segment(self, responses: Responses) -> Segmentation:
        assert responses.entropies is not None
        between = (responses.entropies > self.low) & (responses.entropies <= self.high)
        return from_starts(between, dense_cover(responses))


@dataclass(frozen=True)
class Paragraphs(Checked):
    """Paragraphs, at marks that the stage `segmenter` is asked for."""

    model: str
    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = True

    @classmethod
    def of_stage(cls, folder: Path) -> Paragraphs:
        """Returns the segmenter of a stage's result."""
        return cls((folder / "mark.txt").read_text(encoding="utf-8"))

    def sentence_ends(self, texts: Sequence[str]) -> list[list[int]]:
        """Returns the character ends of each text's paragraphs."""
        return [[*(i + 1 for i, letter in enumerate(text[:-1]) if letter == self.model), len(text)] for text in texts]

    def segment(self, responses: Responses) -> Segmentation:
        return from_starts(responses.mask & False, dense_cover(responses))
