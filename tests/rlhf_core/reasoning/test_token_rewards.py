"""Token rewards: clipping per sign, and alignment between two tokenizers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.reasoning.token_rewards import RewardRanges, aligned_logprobs, token_rewards

Span = tuple[int, int]


def aligned_logprobs_naive(
    spans: Sequence[Span], model_spans: Sequence[Span], model_logprobs: Sequence[float]
) -> list[float]:
    """Returns the same by characters: the reference."""
    of_character: dict[int, float] = {}
    for (start, end), logprob in zip(model_spans, model_logprobs, strict=True):
        for character in range(start, end):
            of_character[character] = logprob / (end - start)
    return [sum(of_character[character] for character in range(start, end)) for start, end in spans]


def test_rewards_are_clipped_on_their_own_side() -> None:
    chances = [0.02, 0.45, 0.5, 0.98]
    assert token_rewards(chances, correct=False) == pytest.approx([-0.1, -0.05, 0.0, 0.0])
    assert token_rewards(chances, correct=True) == pytest.approx([0.0, 0.0, 0.0, 0.48])


def test_a_probability_that_is_none_stops() -> None:
    with pytest.raises(NumericsError, match="token 1 is nan"):
        token_rewards([0.5, math.nan], correct=True)


def test_a_range_the_wrong_way_round_is_refused() -> None:
    with pytest.raises(RecipeError, match="state the lower bound first"):
        RewardRanges(negative=(0.0, -0.1))


@st.composite
def cuts(draw: st.DrawFn) -> tuple[list[Span], list[Span], list[float]]:
    """Two ways to cut one text, and log-probabilities of the second's tokens."""
    length = draw(st.integers(1, 14))
    ways = []
    for _ in range(2):
        inner = draw(st.lists(st.integers(0, length), max_size=8))
        ways.append(list(pairwise([0, *sorted(inner), length])))
    return ways[0], ways[1], [-draw(st.floats(0, 20)) if a < b else 0.0 for a, b in ways[1]]


@given(cuts())
def test_alignment_is_that_by_characters_and_keeps_the_sum(given_: tuple[list[Span], list[Span], list[float]]) -> None:
    spans, model_spans, logprobs = given_
    found = aligned_logprobs(spans, model_spans, logprobs)
    assert found == pytest.approx(aligned_logprobs_naive(spans, model_spans, logprobs))
    assert sum(found) == pytest.approx(sum(logprobs))


def test_texts_of_different_length_are_refused() -> None:
    with pytest.raises(DataError, match="end at 2, the reward model's at 3"):
        aligned_logprobs([(0, 2)], [(0, 3)], [-1.0])
    with pytest.raises(DataError, match="leave out or double"):
        aligned_logprobs([(0, 1), (2, 3)], [(0, 3)], [-1.0])
