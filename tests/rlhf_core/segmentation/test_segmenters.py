"""Segmenters against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, responses_of

from rlhf_core.errors import RecipeError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation.segmenters import (
    SENTENCE_MARKERS,
    Bandit,
    Entropy,
    NGram,
    SentenceMarkers,
    Token,
)
from rlhf_core.segmentation.segments import Segmenter, from_spans

WORDS = ["a", "Xy", " the", " ", "  ", "\n", ".", ",", ", ", "end.", "!?", ";", "…", "。"]  # fmt: skip


@st.composite
def batches(draw: st.DrawFn) -> tuple[Responses, list[list[str]], list[list[float]]]:
    """Responses of 0 to 9 tokens, some ended (even by nothing but EOS), with pieces, entropies and extra padding."""
    rows, pieces, entropies = [], [], []
    for _ in range(draw(st.integers(1, 4))):
        n, ended = draw(st.integers(0, 8)), draw(st.booleans())
        row = [draw(st.integers(3, 9)) for _ in range(n)] + ([EOS] if ended else [])
        rows.append(row)
        pieces.append([draw(st.sampled_from(WORDS)) for _ in range(n)] + (["</s>"] if ended else []))
        entropies.append([draw(st.sampled_from([0.0, 1.0, 1.75, 1.7500001, 2.5])) for _ in row])
    responses = responses_of(rows, entropies, width=draw(st.integers(0, 11)))
    return Responses(responses.ids, responses.mask, responses.ended, pieces, responses.entropies), pieces, entropies


def naive_spans(responses: Responses, row: int, starts_at: Callable[[int], bool]) -> list[tuple[int, int]]:
    """Spans of one row by walking over its tokens; EOS is left out unless it is all there is."""
    n = int(responses.mask[row].sum())
    covered = n - 1 if bool(responses.ended[row]) and n > 1 else n
    spans: list[tuple[int, int]] = []
    for token in range(covered):
        if token == 0 or starts_at(token):
            spans.append((token, token + 1))
        else:
            spans[-1] = (spans[-1][0], token + 1)
    return spans


def naive_sentence_starts(pieces: list[str]) -> list[bool]:
    """A token starts a sentence when a marker was seen since the last start, and it is no marker or blank itself."""
    starts, closed = [], False
    for piece in pieces:
        blank_or_markers = all(c.isspace() or c in SENTENCE_MARKERS for c in piece)
        starts.append(closed and not blank_or_markers)
        closed = (closed and blank_or_markers) or any(c in SENTENCE_MARKERS for c in piece)
    return starts


def check(responses: Responses, segmenter: Segmenter, expected: list[list[tuple[int, int]]]) -> None:
    segmentation = segmenter.segment(responses)
    assert segmentation.ends.shape[0] == len(expected)
    for row, spans in enumerate(expected):
        assert segmentation.spans(row) == spans
        count = len(spans)
        assert int(segmentation.count[row]) == count
        assert segmentation.ends[row].tolist() == [end - 1 for _, end in spans] + [-1] * (
            segmentation.ends.shape[1] - count
        )
        owner = [-1] * responses.ids.shape[1]
        for number, (start, end) in enumerate(spans):
            owner[start:end] = [number] * (end - start)
        assert segmentation.index[row].tolist() == owner
        assert segmentation.lengths[row].tolist()[:count] == [end - start for start, end in spans]
        assert segmentation.lengths[row, count:].sum() == 0
        location = segmentation.location[row]
        torch.testing.assert_close(location[:count], torch.tensor([(t + 1) / count for t in range(count)]))
        assert bool(((location > 0) & (location <= 1)).all())
        assert torch.isfinite(location.log()).all()
    assert segmentation.mask.sum() == sum(len(spans) for spans in expected)


#: Segmenters, and whether a token starts a segment, by its place, all pieces and all entropies.
NAIVE: dict[str, tuple[Segmenter, Callable[[int, list[str], list[float]], bool]]] = {
    "token": (Token(), lambda token, pieces, entropies: True),
    "ngram": (NGram(3), lambda token, pieces, entropies: token % 3 == 0),
    "entropy": (Entropy(1.75), lambda token, pieces, entropies: entropies[token] > 1.75),
    "sentence": (SentenceMarkers(), lambda token, pieces, entropies: naive_sentence_starts(pieces)[token]),
}


@pytest.mark.parametrize("name", NAIVE)
@settings(max_examples=60, deadline=None)
@given(batches())
def test_segments_are_those_of_a_plain_loop(
    name: str, drawn: tuple[Responses, list[list[str]], list[list[float]]]
) -> None:
    responses, pieces, entropies = drawn
    segmenter, starts = NAIVE[name]
    expected = [
        naive_spans(responses, i, partial(lambda i, token: starts(token, pieces[i], entropies[i]), i))
        for i in range(len(pieces))
    ]
    check(responses, segmenter, expected)
    again = from_spans(expected, responses.ids.shape[1])
    assert torch.equal(again.index, segmenter.segment(responses).index)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_bandit_is_one_segment_read_at_the_last_token(
    drawn: tuple[Responses, list[list[str]], list[list[float]]],
) -> None:
    responses, pieces, _ = drawn
    check(responses, Bandit(), [[(0, len(row))] if row else [] for row in pieces])


def test_what_a_segmenter_needs_is_asked_for() -> None:
    responses = responses_of([[3, 4]])
    with pytest.raises(RecipeError, match="entropies"):
        Entropy(1.0).segment(responses)
    with pytest.raises(RecipeError, match="pieces"):
        SentenceMarkers().segment(Responses(responses.ids, responses.mask, responses.ended))
    with pytest.raises(RecipeError, match="at least 1"):
        NGram(0)
