"""Batches of prompts: every one once before any again, the same for the same seed, resumable anywhere."""

from __future__ import annotations

import itertools
import json

import pytest

from rlhf_core.data.prompt_batches import PromptBatches
from rlhf_core.errors import DataError, RecipeError


def take(batches: PromptBatches[str], count: int) -> list[list[str]]:
    return list(itertools.islice(batches, count))


def test_every_prompt_comes_once_before_any_comes_again() -> None:
    drawn = [item for batch in take(PromptBatches("abcdefg", 3, 0), 14) for item in batch]
    assert len(drawn) == 42
    for start in range(0, 42, 7):
        assert sorted(drawn[start : start + 7]) == list("abcdefg")


def test_batches_may_be_larger_than_the_set() -> None:
    assert all(sorted(batch) == list("aabbcc") for batch in take(PromptBatches("abc", 6, 0), 4))


def test_order_is_of_the_seed() -> None:
    a, b, c = (take(PromptBatches("abcdefg", 3, seed), 10) for seed in (0, 0, 1))
    assert a == b != c


@pytest.mark.parametrize("done", range(9))
def test_a_saved_position_goes_on(done: int) -> None:
    expected = take(PromptBatches("abcdefg", 3, 4), 12)
    batches = PromptBatches("abcdefg", 3, 4)
    take(batches, done)
    saved = batches.state_dict()
    take(batches, 5)
    resumed = PromptBatches("abcdefg", 3, 4)
    resumed.load_state_dict(saved)
    assert take(resumed, 12 - done) == expected[done:]
    json.dumps(saved)


def test_wrong_uses_are_refused() -> None:
    with pytest.raises(DataError, match="no prompts"):
        PromptBatches([], 3, 0)
    with pytest.raises(RecipeError, match="at least 1"):
        PromptBatches("abc", 0, 0)
    with pytest.raises(DataError, match="among 3 prompts, there are 4"):
        PromptBatches("abcd", 2, 0).load_state_dict(PromptBatches("abc", 2, 0).state_dict())
