"""Responses cut into segments, as reward models are trained on them and read."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.tokenizers import require_offset_mapping, token_spans
from rlhf_core.errors import RecipeError
from rlhf_core.rewards.aggregation import Aggregation
from rlhf_core.rewards.preference_training import PLAIN_MEAN
from rlhf_core.segmentation.end_tokens import with_end_tokens
from rlhf_core.segmentation.segmenters import SentenceSegmenter
from rlhf_core.segmentation.segments import Segmentation, SegmentedSequence, Segmenter
from tasks.running.result_rows import PreferencePair

NO_SENTENCES = "this reward model reads a token behind each sentence: use a segmenter that finds sentences, such as sat"


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
    chunk: int = 512,
    *,
    aggregation: Aggregation = PLAIN_MEAN,
    end_token: int | None = None,
) -> SegmentedPairs:
    """Encodes and segments both responses of every pair, with `<END>` behind each sentence where its id is given."""
    encoded = [encoder.sequence(row, row[side]) for side in ("chosen", "rejected") for row in rows]
    sequences, spans = segmented(encoded, encoder, segmenter, entropies, end_token, chunk)
    return SegmentedPairs(rows, sequences, spans, aggregation)


def segmented(
    encoded: list[EncodedSequence],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    end_token: int | None = None,
    chunk: int = 512,
) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
    """Returns sequences cut into segments, with `<END>` behind each sentence if its id is given, and the spans.

    Raises:
        RecipeError: `<END>` with segments that are not sentences.
    """
    if end_token is None:
        return segment_sequences(encoded, encoder, segmenter, entropies, chunk)
    if not isinstance(segmenter, SentenceSegmenter):
        raise RecipeError(NO_SENTENCES)
    return sequences_with_ends(encoded, encoder, segmenter, end_token)


def sequences_with_ends(
    encoded: list[EncodedSequence], encoder: Encoder, segmenter: SentenceSegmenter, end_token: int
) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
    """Returns sequences with `<END>` behind each sentence and EOS last, and the spans of sentences with their `<END>`.

    Responses are cut to the limits before the tokens are added.
    """
    texts = [token_spans(encoder.tokenizer, sequence.response)[0] for sequence in encoded]
    sequences: list[SegmentedSequence] = []
    spans: list[list[tuple[int, int]]] = []
    for sequence, text, sentences in zip(encoded, texts, segmenter.sentence_ends(texts), strict=True):
        ids, ends = with_end_tokens(encoder.tokenizer, text, sentences, end_token)
        sequences.append(SegmentedSequence(EncodedSequence(sequence.prompt, [*ids, encoder.eos_id]), ends))
        spans.append([(start, end + 1) for start, end in zip([0, *(e + 1 for e in ends)], ends, strict=False)])
    return sequences, spans


def segment_sequences(
    encoded: list[EncodedSequence],
    encoder: Encoder,
    segmenter: Segmenter,
    entropies: list[list[float]] | None,
    chunk: int = 512,
) -> tuple[list[SegmentedSequence], list[list[tuple[int, int]]]]:
    """Returns the sequences with the ends of their responses' segments, and the segments' half-open spans, which may be
    empty (see `Segmentation`)."""
    if segmenter.needs_spelling:
        require_offset_mapping(encoder.tokenizer)
    sequences: list[SegmentedSequence] = []
    spans: list[list[tuple[int, int]]] = []
    for start in range(0, len(encoded), chunk):
        part = encoded[start : start + chunk]
        wanted = entropies[start : start + chunk] if entropies is not None else None
        segmentation: Segmentation = segmenter.segment(
            encoder.responses(part, wanted, spelled=segmenter.needs_spelling)
        )
        for i, sequence in enumerate(part):
            row_spans = segmentation.spans(i)
            spans.append(row_spans)
            sequences.append(SegmentedSequence(sequence, [end - 1 for _, end in row_spans]))
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
