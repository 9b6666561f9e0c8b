"""Segmentations: ends per response over a mask, and the tokens that close sentences.

The boundary token is the last token whose character span starts before the boundary; several sentences closed by one
token share it, so what is paid to them accumulates there. Source: Sentence, §3.2 and appendix A.3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlhf_core.lazy import torch
from rlhf_core.rollout import Responses

if TYPE_CHECKING:
    from torch import Tensor

    from rlhf_core.data.encoding import EncodedSequence


@dataclass(frozen=True)
class Segmentation:
    """Non-overlapping runs of response tokens.

    A segment may be empty: where one token closes several sentences, the first has the token and the others end on
    it without a token of their own.

    Attributes:
        ends: [batch, max_segments] int64, index of each segment's last token, -1 beyond `count`.
        count: [batch] int64, segments per response.
        index: [batch, response_len] int64, the segment each token belongs to, -1 for none, as for EOS.
    """

    ends: Tensor
    count: Tensor
    index: Tensor

    @property
    def mask(self) -> Tensor:
        """Returns [batch, max_segments] bool, True on real segments."""
        return self.ends >= 0

    @property
    def lengths(self) -> Tensor:
        """Returns [batch, max_segments] int64, tokens per segment, 0 beyond `count`."""
        lengths = torch.zeros_like(self.ends)
        rows, tokens = torch.nonzero(self.index >= 0, as_tuple=True)
        lengths.index_put_((rows, self.index[rows, tokens]), torch.ones_like(rows), accumulate=True)
        return lengths

    @property
    def location(self) -> Tensor:
        """Returns [batch, max_segments] float32, p = (t+1)/T in (0, 1], 1 beyond `count`. Source: Segment, §2.3."""
        position = torch.arange(1, self.ends.shape[1] + 1, device=self.ends.device, dtype=torch.float32)
        location = position[None] / self.count.clamp(min=1)[:, None].float()
        return torch.where(self.mask, location, torch.ones_like(location))

    def to(self, device: torch.device | None) -> Segmentation:
        """Returns the segmentation on a device."""
        return Segmentation(self.ends.to(device), self.count.to(device), self.index.to(device))

    def spans(self, row: int) -> list[tuple[int, int]]:
        """Returns half-open token spans of one row, in order; an empty segment's is (end, end)."""
        index = self.index[row].tolist()
        spans: list[tuple[int, int]] = []
        for segment in range(int(self.count[row])):
            end = int(self.ends[row, segment]) + 1
            spans.append((index.index(segment) if segment in index else end, end))
        return spans


def from_starts(starts: Tensor, covered: Tensor) -> Segmentation:
    """Returns the segmentation from marks of starts over the covered tokens (a prefix of every row), [batch,
    response_len] bool; the first covered token starts a segment whatever its mark says."""
    starts = starts & covered
    if starts.shape[1]:
        starts = starts.clone()
        starts[:, 0] = covered[:, 0]
    index = torch.where(covered, starts.long().cumsum(dim=1) - 1, torch.full_like(starts, -1, dtype=torch.long))
    count = starts.sum(dim=1)
    ends = torch.full((starts.shape[0], max(1, int(count.max()) if count.numel() else 1)), -1, dtype=torch.long)
    ends = ends.to(starts.device)
    following = torch.zeros_like(starts)
    following[:, :-1] = starts[:, 1:] | ~covered[:, 1:]
    if starts.shape[1]:
        following[:, -1] = True
    rows, tokens = torch.nonzero(covered & following, as_tuple=True)
    ends[rows, index[rows, tokens]] = tokens
    return Segmentation(ends=ends, count=count, index=index)


def dense_cover(responses: Responses) -> Tensor:
    """Returns [batch, response_len] bool: the tokens that dense segments cover (every real token but EOS)."""
    positions = torch.arange(responses.ids.shape[1], device=responses.ids.device)
    return positions[None] < responses.dense_lengths[:, None]


def from_spans(spans: Sequence[Sequence[tuple[int, int]]], response_len: int) -> Segmentation:
    """Returns the segmentation from half-open token spans per row, in order and without gaps; some may be empty."""
    count = torch.tensor([len(row_spans) for row_spans in spans], dtype=torch.long)
    ends = torch.full((len(spans), max([1, *count.tolist()])), -1, dtype=torch.long)
    index = torch.full((len(spans), response_len), -1, dtype=torch.long)
    for row, row_spans in enumerate(spans):
        for segment, (start, end) in enumerate(row_spans):
            ends[row, segment] = end - 1
            index[row, start:end] = segment
    return Segmentation(ends=ends, count=count, index=index)


def from_ends(ends: Sequence[Sequence[int]], response_len: int) -> Segmentation:
    """Returns the segmentation from each row's last tokens of segments, never decreasing, from the first token on."""
    spans = []
    for row_ends in ends:
        starts = [0, *(end + 1 for end in row_ends)]
        spans.append([(start, end + 1) for start, end in zip(starts, row_ends, strict=False)])
    return from_spans(spans, response_len)


class Segmenter(ABC):
    """Cuts responses into segments.

    A class whose model the stage `segmenter` makes has a method `of_stage(folder)`; one whose segments are sentences
    has `sentence_ends(texts)`.

    Attributes:
        needs_entropies, needs_spelling: whether it reads these parts of `Responses`.
        stated: dataclass of the options that a file gives, where these are not the class's own.
        cutoffs: options for which a file names a cutoff of the scale, which a stage replaces by nats.
    """

    needs_entropies: ClassVar[bool] = False
    needs_spelling: ClassVar[bool] = False
    stated: ClassVar[type[Any] | None] = None
    cutoffs: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def segment(self, responses: Responses) -> Segmentation:
        """Returns the segments of responses, which cover each from its first token on."""


@dataclass(frozen=True)
class SegmentedSequence:
    """A sequence and the response token indices at which its segments end."""

    sequence: EncodedSequence
    ends: list[int]


def closing_positions(text: str, ends: Sequence[int]) -> list[int]:
    """Returns the ends of sentences for tokens: after the last character that is not white space.

    Segmenters leave the white space after a sentence with it, byte-level tokenizers put it into the next word's
    token; without it, the token that closes a sentence is the sentence's own. The last sentence ends with the text.
    """
    closed = [len(text[:end].rstrip()) for end in ends]
    return [*closed[:-1], len(text)] if ends else []


def boundary_tokens(starts: Sequence[int], boundaries: Sequence[int]) -> list[int]:
    """Returns [m] indices of the tokens that close boundaries; a boundary at 0 belongs to the first token.

    Args:
        starts: [n >= 1] first character of each token, never decreasing.
        boundaries: [m] characters before which sentences end, never decreasing.
    """
    return [max(0, bisect_left(starts, boundary) - 1) for boundary in boundaries]
