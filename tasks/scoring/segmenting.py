"""Responses cut into segments, as reward models are trained on them and read."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.tokenizers import require_offset_mapping, token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.rewards.aggregation import Aggregation
from rlhf_core.rewards.preference_training import PLAIN_MEAN
from rlhf_core.segmentation.end_tokens import with_end_tokens
from rlhf_core.segmentation.segments import SegmentedSequence, Segmenter
from tasks.running.result_rows import PreferencePair

NO_SENTENCES = "this reward model reads a token behind each sentence: use a segmenter that finds sentences, such as sat"
#: Responses that are cut at a time.
CHUNK = 512


@dataclass(frozen=True)
class SegmentedPairs:
    """Preference pairs of one split, cut into segments: chosen then rejected responses."""

    rows: list[PreferencePair]
    sequences: list[SegmentedSequence]
    spans: list[list[tuple[int, int]]]
    aggregation: Aggregation = field(default=PLAIN_MEAN)

    @property
    def count(self) -> int:
        """Returns the number of pairs; there are twice as many sequences."""
        return len(self.rows)


def segment_pairs(
    rows: list[PreferencePair],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    *,
    aggregation: Aggregation = PLAIN_MEAN,
    end_token: int | None = None,
) -> SegmentedPairs:
    """Encodes and segments both responses of every pair; see `segmented`."""
    encoded = [encoder.sequence(row, row[side]) for side in ("chosen", "rejected") for row in rows]
    return SegmentedPairs(rows, *segmented(encoded, encoder, segmenter, entropies, end_token), aggregation)


def segmented(
    encoded: list[EncodedSequence],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    end_token: int | None = None,
) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
    """Returns the sequences with the ends of their responses' segments, and the segments' half-open spans, which may be
    empty (see `Segmentation`).

    With the id of `<END>` that token is added behind each sentence, after responses were cut to the limits.

    Raises:
        RecipeError: `<END>` with segments that are not sentences.
    """
    sequences: list[SegmentedSequence] = []
    spans: list[list[tuple[int, int]]] = []
    if end_token is not None:
        find_ends = getattr(segmenter, "sentence_ends", None)
        if find_ends is None:
            raise RecipeError(NO_SENTENCES)
        texts = [token_spans(encoder.tokenizer, sequence.response)[0] for sequence in encoded]
        for sequence, text, sentences in zip(encoded, texts, find_ends(texts), strict=True):
            ids, ends = with_end_tokens(encoder.tokenizer, text, sentences, end_token)
            sequences.append(SegmentedSequence(EncodedSequence(sequence.prompt, [*ids, encoder.eos_id]), ends))
            spans.append([(start, end + 1) for start, end in zip([0, *(e + 1 for e in ends)], ends, strict=False)])
        return sequences, spans
    if segmenter.needs_spelling:
        require_offset_mapping(encoder.tokenizer)
    for start in range(0, len(encoded), CHUNK):
        part = encoded[start : start + CHUNK]
        wanted = entropies[start : start + CHUNK] if entropies is not None else None
        cut = segmenter.segment(encoder.responses(part, wanted, spelled=segmenter.needs_spelling))
        spans += [cut.spans(i) for i in range(len(part))]
        ends_of = ([end - 1 for _, end in own] for own in spans[start:])
        sequences += [SegmentedSequence(sequence, ends) for sequence, ends in zip(part, ends_of, strict=True)]
    return sequences, spans


def divide_among_tokens(spans: list[tuple[int, int]], values: list[float], tokens: int) -> list[float | None]:
    """Returns each segment's reward divided evenly among its tokens; None outside every segment.

    A segment without tokens adds its reward to the token on which it ends.
    """
    rewards: list[float | None] = [None] * tokens
    for (start, end), value in zip(spans, values, strict=True):
        if start < end:
            rewards[start:end] = [value / (end - start)] * (end - start)
        else:
            rewards[end - 1] = (rewards[end - 1] or 0.0) + value
    return rewards
