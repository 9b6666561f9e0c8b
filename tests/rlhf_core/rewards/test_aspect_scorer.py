"""Aspects on tokens: characters of a response become values of its tokens, whatever the tokenizer does to the text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import ToyTokenizer, batch_of

from rlhf_core.aspects import Density, Scored
from rlhf_core.aspects.aspect import SIGNALS
from rlhf_core.credit import CREDITS
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.rewards.aspect_scorer import AspectScorer, slice_tokens, token_values
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.signals import Segments

Span = tuple[int, int]


@st.composite
def cuts(draw: st.DrawFn, gaps: bool) -> list[Span]:
    """Ordered, disjoint spans of a text of 30 characters."""
    edges = sorted(draw(st.sets(st.integers(0, 30), min_size=2, max_size=12)))
    spans = list(pairwise(edges))
    return [span for span in spans if draw(st.booleans())] if gaps else [(0, edges[0]), *spans, (edges[-1], 30)]


@settings(max_examples=100, deadline=None)
@given(cuts(gaps=False), cuts(gaps=True))
def test_a_slice_ends_on_the_last_token_that_starts_before_it_does(tokens: list[Span], spans: list[Span]) -> None:
    found = slice_tokens(tokens, spans)
    assert len(found) == len(spans)
    behind = 0
    for (start, end), (first, last) in zip(found, spans, strict=True):
        assert end - 1 == max([i for i, token in enumerate(tokens) if token[0] < last], default=0)
        assert behind <= start <= end
        assert all(tokens[i][1] > first for i in range(start, end))
        behind = end


@settings(max_examples=100, deadline=None)
@given(cuts(gaps=False), cuts(gaps=True), st.lists(st.floats(-2, 2), min_size=12, max_size=12))
def test_a_token_has_the_value_furthest_from_zero_that_it_overlaps(
    tokens: list[Span], spans: list[Span], drawn: list[float]
) -> None:
    scored = Scored(tuple(spans), tuple(drawn[: len(spans)]))
    for (start, end), value in zip(tokens, token_values(tokens, scored), strict=True):
        over = [v for (a, b), v in zip(spans, scored.values, strict=True) if a < end and b > start]
        assert abs(value) == max(map(abs, over), default=0.0)


@dataclass(frozen=True)
class Told:
    """Says of every response what it is told."""

    density: Density
    spans: tuple[Span, ...] | None
    values: tuple[float, ...]
    name: str = "told"
    higher_is_better: bool = True

    def score(self, records: Sequence[Mapping[str, Any]], responses: Sequence[str]) -> list[Scored]:
        return [Scored(((0, len(text)),) if self.spans is None else self.spans, self.values) for text in responses]


BATCH = batch_of([[5], [6]], [[11, 12, 13, 14, 2], [15, 16, 17, 18]])  # " 11 12 13 14" and EOS; " 15 16 17 18", cut off


def paid(aspect: Told, credit: str | None = None) -> torch.Tensor:
    scorer = AspectScorer(aspect, ToyTokenizer())  # type: ignore[arg-type]
    component = Component("told", scorer, CREDITS[credit or SIGNALS[aspect.density][1]])
    return Reward((component,), clamp=None)(BATCH).total


def test_a_sequence_aspect_is_paid_on_the_last_token() -> None:
    assert paid(Told(Density.SEQUENCE, None, (0.75,))).tolist() == [[0, 0, 0, 0, 0.75], [0, 0, 0, 0.75, 0]]


def test_a_sentence_aspect_is_paid_at_the_ends_of_its_sentences_and_leaves_the_rest_at_zero() -> None:
    told = Told(Density.SENTENCE, ((0, 3), (6, 12)), (0.5, -0.5))
    assert paid(told).tolist() == [[0.5, 0, 0, -0.5, 0], [0.5, 0, 0, -0.5, 0]]
    signal = AspectScorer(told, ToyTokenizer()).score(BATCH)  # type: ignore[arg-type]
    assert isinstance(signal, Segments)
    assert signal.segmentation.spans(0) == [(0, 1), (2, 4)]


def test_a_token_aspect_is_paid_token_by_token() -> None:
    told = Told(Density.TOKEN, ((1, 3), (4, 6), (7, 9), (10, 12)), (0.0, -1.0, 0.0, 0.0))
    assert paid(told).tolist() == [[0, -1, 0, 0, 0], [0, -1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("aspect", "error", "message"),
    [
        (Told(Density.SEQUENCE, ((0, 2),), (1.0,)), RecipeError, "one span over the whole response"),
        (Told(Density.SPAN, ((0, 99),), (1.0,)), RecipeError, "outside the response"),
        (Told(Density.SPAN, ((0, 2), (1, 3)), (1.0, 1.0)), RecipeError, "before the end of the span ahead"),
        (Told(Density.SENTENCE, ((0, 2),), (float("nan"),)), NumericsError, "not finite"),
    ],
)
def test_scores_that_are_not_of_the_declared_density_are_refused(
    aspect: Told, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        paid(aspect)


def test_results_do_not_depend_on_padding() -> None:
    told = Told(Density.SENTENCE, ((0, 3), (6, 12)), (0.5, -0.5))
    alone = batch_of([[6]], [[15, 16, 17, 18]])
    scorer = AspectScorer(told, ToyTokenizer())  # type: ignore[arg-type]
    reward = Reward((Component("told", scorer, CREDITS["segment_end"]),), clamp=None)
    assert torch.equal(reward(alone).total[0], reward(BATCH).total[1, :4])
