"""Segmenters against plain loops."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import EOS, responses_of

from rlhf_core.errors import RecipeError
from rlhf_core.rollout import Responses
from rlhf_core.segmentation import Bandit, Entropy, NGram, SentenceMarkers, Token, build_segmenter, from_spans
from rlhf_core.segmentation.segmenters import SENTENCE_MARKERS, Segmenter

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


@settings(max_examples=80, deadline=None)
@given(batches())
def test_token_segments_are_the_tokens_but_eos(drawn: tuple[Responses, list[list[str]], list[list[float]]]) -> None:
    responses, pieces, _ = drawn
    check(responses, Token(), [naive_spans(responses, i, lambda _: True) for i in range(len(pieces))])


@settings(max_examples=80, deadline=None)
@given(batches(), st.integers(1, 5))
def test_ngrams_start_every_n_tokens(drawn: tuple[Responses, list[list[str]], list[list[float]]], n: int) -> None:
    responses, pieces, _ = drawn
    check(responses, NGram(n), [naive_spans(responses, i, lambda t: t % n == 0) for i in range(len(pieces))])


@settings(max_examples=80, deadline=None)
@given(batches())
def test_entropy_starts_are_strictly_above_the_cutoff(
    drawn: tuple[Responses, list[list[str]], list[list[float]]],
) -> None:
    responses, pieces, entropies = drawn
    expected = [naive_spans(responses, i, lambda t, i=i: entropies[i][t] > 1.75) for i in range(len(pieces))]  # type: ignore[misc]
    check(responses, Entropy(1.75), expected)


@settings(max_examples=150, deadline=None)
@given(batches())
def test_sentences_end_at_markers(drawn: tuple[Responses, list[list[str]], list[list[float]]]) -> None:
    responses, pieces, _ = drawn
    expected = []
    for i, row in enumerate(pieces):
        starts = naive_sentence_starts(row)
        expected.append(naive_spans(responses, i, lambda t, starts=starts: starts[t]))  # type: ignore[misc]
    check(responses, SentenceMarkers(), expected)


@settings(max_examples=60, deadline=None)
@given(batches())
def test_bandit_is_one_segment_read_at_the_last_token(
    drawn: tuple[Responses, list[list[str]], list[list[float]]],
) -> None:
    responses, pieces, _ = drawn
    check(responses, Bandit(), [[(0, len(row))] if row else [] for row in pieces])


@settings(max_examples=60, deadline=None)
@given(batches(), st.sampled_from([Token(), NGram(3), Entropy(1.0), SentenceMarkers()]))
def test_dense_segments_cover_every_token_once_and_never_eos(
    drawn: tuple[Responses, list[list[str]], list[list[float]]], segmenter: Segmenter
) -> None:
    responses, pieces, _ = drawn
    segmentation = segmenter.segment(responses)
    for row, words in enumerate(pieces):
        times = [0] * responses.ids.shape[1]
        for start, end in segmentation.spans(row):
            for token in range(start, end):
                times[token] += 1
        for token, count in enumerate(times):
            is_eos = token < len(words) and token == len(words) - 1 and bool(responses.ended[row])
            only_eos = is_eos and len(words) == 1
            assert count == int(token < len(words) and (not is_eos or only_eos))


def test_a_response_that_is_only_eos_has_one_segment() -> None:
    responses = responses_of([[EOS], [5, EOS]], [[0.0], [0.0, 9.0]])
    for segmenter in (Bandit(), Token(), NGram(4), Entropy(1.0), SentenceMarkers()):
        assert segmenter.segment(responses).spans(0) == [(0, 1)]
    assert Entropy(1.0).segment(responses).spans(1) == [(0, 1)]


def test_a_blank_token_after_a_marker_does_not_hide_the_sentence_end() -> None:
    responses = responses_of([[4, 5, 6, 7, 8]])
    responses = Responses(responses.ids, responses.mask, responses.ended, [["One", ".", " ", " Two", " three"]])
    assert SentenceMarkers().segment(responses).spans(0) == [(0, 3), (3, 5)]


def test_spans_make_the_segmentation_they_come_from() -> None:
    responses = responses_of([[3, 4, 5, 6, EOS], [3, EOS], []])
    segmentation = NGram(3).segment(responses)
    again = from_spans([segmentation.spans(i) for i in range(3)], 5)
    assert torch.equal(again.ends, segmentation.ends)
    assert torch.equal(again.index, segmentation.index)
    assert torch.equal(again.count, segmentation.count)


def test_what_a_segmenter_needs_is_asked_for() -> None:
    responses = responses_of([[3, 4]])
    with pytest.raises(RecipeError, match="entropies"):
        Entropy(1.0).segment(responses)
    with pytest.raises(RecipeError, match="pieces"):
        SentenceMarkers().segment(Responses(responses.ids, responses.mask, responses.ended))
    with pytest.raises(RecipeError, match="at least 1"):
        NGram(0)


def test_segmenters_by_name() -> None:
    assert build_segmenter({"kind": "entropy", "cutoff": 1.75}) == Entropy(1.75)
    assert build_segmenter({"kind": "ngram", "n": 5}) == NGram(5)
    with pytest.raises(RecipeError, match="did you mean 'entropy'"):
        build_segmenter({"kind": "entropie", "cutoff": 1})
    with pytest.raises(RecipeError, match="cutoff"):
        build_segmenter({"kind": "entropy"})
    with pytest.raises(RecipeError, match="segmenter 'token': unknown option 'n'; known: none"):
        build_segmenter({"kind": "token", "n": 2})
