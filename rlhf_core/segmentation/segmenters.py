"""Segmenters: where one action ends and the next begins.

Each is a small frozen dataclass with `segment(responses) -> Segmentation`. EOS belongs to no dense segment;
`Bandit` alone covers the whole response and is read at its last token. Source: Segment, §2.2 and appendix D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from typing import Any, ClassVar, Protocol

from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.sat import SaT
from rlhf_core.segmentation.segments import Segmentation, dense_cover, from_starts

#: Sentence markers of the Segment paper (§4.2) and their foreign-language equivalents.
SENTENCE_MARKERS = frozenset(".!?\n;,:…。！？；，：、،؟؛।")


class Segmenter(Protocol):
    """Cuts responses into segments; says which optional parts of `Responses` it reads."""

    needs_entropies: ClassVar[bool]
    needs_spelling: ClassVar[bool]

    def segment(self, responses: Responses) -> Segmentation: ...


@dataclass(frozen=True)
class Bandit:
    """One segment, the whole response, read at EOS or the last token."""

    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = False

    def segment(self, responses: Responses) -> Segmentation:
        return from_starts(torch.zeros_like(responses.mask), responses.mask)


@dataclass(frozen=True)
class Token:
    """Every token but EOS is a segment."""

    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = False

    def segment(self, responses: Responses) -> Segmentation:
        return from_starts(torch.ones_like(responses.mask), dense_cover(responses))


@dataclass(frozen=True)
class NGram:
    """Every n tokens, without overlap. Source: Segment, §4.3 (a)."""

    n: int
    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise RecipeError(f"n-gram segmenter: n is {self.n}, it must be at least 1")

    def segment(self, responses: Responses) -> Segmentation:
        positions = torch.arange(responses.ids.shape[1], device=responses.ids.device)
        return from_starts((positions % self.n == 0).expand_as(responses.mask), dense_cover(responses))


@dataclass(frozen=True)
class SentenceMarkers:
    """A token that carries a sentence marker ends a segment; a run of markers and blanks ends it once.

    Source: Segment, §4.2.
    """

    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = False

    def segment(self, responses: Responses) -> Segmentation:
        if responses.pieces is None:
            raise RecipeError("the sentence segmenter needs the text of each token (`pieces`)")
        starts = torch.zeros_like(responses.mask)
        for row, pieces in enumerate(responses.pieces):
            closed = False
            for position, piece in enumerate(pieces[: starts.shape[1]]):
                only_markers = set(piece.strip()) <= SENTENCE_MARKERS
                starts[row, position] = closed and not only_markers
                closed = (closed and only_markers) or bool(set(piece) & SENTENCE_MARKERS)
        return from_starts(starts, dense_cover(responses))


@dataclass(frozen=True)
class Entropy:
    """Token i starts a segment when the entropy of the SFT model's prediction of it exceeds the cutoff.

    Args:
        cutoff: c_ent in nats; the comparison is strict. Source: Segment, §2.2.
    """

    cutoff: float
    needs_entropies: ClassVar[bool] = True
    needs_spelling: ClassVar[bool] = False

    def segment(self, responses: Responses) -> Segmentation:
        if responses.entropies is None:
            raise RecipeError("the entropy segmenter needs the SFT model's entropies")
        return from_starts(responses.entropies > self.cutoff, dense_cover(responses))


SEGMENTERS: dict[str, type[Any]] = {
    "bandit": Bandit,
    "token": Token,
    "ngram": NGram,
    "sentence": SentenceMarkers,
    "entropy": Entropy,
    "sat": SaT,
}


def build_segmenter(spec: Mapping[str, Any]) -> Segmenter:
    """Segmenter from `{kind: entropy, cutoff: 1.75}`; unknown kinds and fields are refused."""
    options = dict(spec)
    kind = str(options.pop("kind", None))
    if kind not in SEGMENTERS:
        near = get_close_matches(kind, SEGMENTERS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise RecipeError(f"unknown segmenter '{kind}'{hint} Known: {', '.join(SEGMENTERS)}")
    expected = {f.name for f in fields(SEGMENTERS[kind]) if f.name != "known"}
    required = {f.name for f in fields(SEGMENTERS[kind]) if f.default is MISSING and f.default_factory is MISSING}
    if not required <= set(options) <= expected:
        raise RecipeError(
            f"segmenter '{kind}' takes {sorted(expected) or 'no options'}, the recipe gives {sorted(options)}"
        )
    segmenter: Segmenter = SEGMENTERS[kind](**options)
    return segmenter
