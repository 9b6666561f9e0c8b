"""Segmenters: where one action ends and the next begins.

Each is a small frozen dataclass with `segment(responses) -> Segmentation`. EOS belongs to no dense segment;
`Bandit` alone covers the whole response and is read at its last token. Source: Segment, §2.2 and appendix D.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.sat import SaT, cut_at
from rlhf_core.segmentation.segments import Segmentation, Segmenter, dense_cover, from_starts
from rlhf_core.testbed.grammar import FAMILIES, read
from rlhf_core.typed import Checked, at_least, typed

#: Sentence markers of the Segment paper (§4.2) and their foreign-language equivalents.
SENTENCE_MARKERS = frozenset(".!?\n;,:…。！？；，：、،؟؛।")


@dataclass(frozen=True)
class Bandit(Segmenter):
    """One segment, the whole response, read at EOS or the last token."""

    def segment(self, responses: Responses) -> Segmentation:
        return from_starts(torch.zeros_like(responses.mask), responses.mask)


@dataclass(frozen=True)
class Token(Segmenter):
    """Every token but EOS is a segment."""

    def segment(self, responses: Responses) -> Segmentation:
        return from_starts(torch.ones_like(responses.mask), dense_cover(responses))


@dataclass(frozen=True)
class NGram(Checked, Segmenter):
    """Every n tokens, without overlap. Source: Segment, §4.3 (a)."""

    n: Annotated[int, at_least(1)]

    def segment(self, responses: Responses) -> Segmentation:
        positions = torch.arange(responses.ids.shape[1], device=responses.ids.device)
        return from_starts((positions % self.n == 0).expand_as(responses.mask), dense_cover(responses))


@dataclass(frozen=True)
class SentenceMarkers(Segmenter):
    """A token that carries a sentence marker ends a segment; a run of markers and blanks ends it once.

    Source: Segment, §4.2.
    """

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
class StatedEntropy(Checked):
    """An entropy segmenter as a row states it: the cutoff is a name of the scale's `entropies` settings."""

    cutoff: str | float


@dataclass(frozen=True)
class Entropy(Checked, Segmenter):
    """Token i starts a segment when the entropy of the SFT model's prediction of it exceeds the cutoff.

    Args:
        cutoff: c_ent in nats; the comparison is strict. Source: Segment, §2.2.
    """

    cutoff: float
    needs_entropies: ClassVar[bool] = True
    stated: ClassVar[type[Any]] = StatedEntropy
    cutoffs: ClassVar[tuple[str, ...]] = ("cutoff",)

    def segment(self, responses: Responses) -> Segmentation:
        if responses.entropies is None:
            raise RecipeError("the entropy segmenter needs the SFT model's entropies")
        if not bool(torch.isfinite(responses.entropies[responses.mask]).all()):
            raise NumericsError("an entropy is not finite, which no cutoff finds; look at the SFT model's logits")
        return from_starts(responses.entropies > self.cutoff, dense_cover(responses))


@dataclass(frozen=True)
class GoldClauses(Segmenter):
    """The clauses of the testbed's dialogue world, as its parser finds them: the true boundaries.

    A clause ends at its boundary token, as a sentence of `SaT` does.
    """

    needs_spelling: ClassVar[bool] = True

    def segment(self, responses: Responses) -> Segmentation:
        return cut_at(responses, lambda texts: [[c.end for c in read(text, tuple(FAMILIES))] for text in texts])


SEGMENTERS: Choices[type[Any]] = Choices(
    "segmenter",
    {
        "bandit": Bandit,
        "token": Token,
        "ngram": NGram,
        "sentence": SentenceMarkers,
        "entropy": Entropy,
        "sat": SaT,
        "gold": GoldClauses,
    },
    needs=("needs_entropies", "needs_spelling", "segment"),
)


def build_segmenter(spec: str | Mapping[str, Any]) -> Segmenter:
    """Returns the segmenter of a specification such as `{kind: entropy, cutoff: 1.75}`; see `Choices.build`."""
    segmenter: Segmenter = SEGMENTERS.build(spec)
    return segmenter


def segmenter_class(spec: str | Mapping[str, Any]) -> type[Any]:
    """Returns the class of a segmenter as a file states it, whose attributes say what it needs; see `Segmenter`."""
    return SEGMENTERS[SEGMENTERS.kind_of(spec)]


def cutoff_names(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns, by option, the names of the scale's cutoffs that a segmenter states."""
    return {name: spec[name] for name in getattr(segmenter_class(spec), "cutoffs", ()) if name in spec}


def check_stated_segmenter(spec: Any) -> None:
    """Refuses a segmenter that a file states wrongly; stages put in what only they know."""
    kind, stated = SEGMENTERS.kind_of(spec), getattr(segmenter_class(spec), "stated", None)
    if stated is None:
        SEGMENTERS.build(spec)
        return
    options = {} if isinstance(spec, str) else {name: value for name, value in spec.items() if name != "kind"}
    typed(stated, options, f"segmenter '{kind}'")
