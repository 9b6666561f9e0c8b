from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.truncation import CutCounts, Limits, truncate_response, truncate_sequence
from rlhf_core.errors import DataError, RecipeError

EOS = -1
IDS = st.lists(st.integers(0, 50), max_size=30)


@given(prompt=IDS, response=IDS, cap=st.integers(1, 20), room=st.integers(1, 20))
def test_prompts_keep_their_right_end_and_responses_their_left(
    prompt: list[int], response: list[int], cap: int, room: int
) -> None:
    counts = CutCounts()
    limits = Limits(cap, cap + room)
    response = [*response, EOS]
    kept_prompt, kept = truncate_sequence(prompt, response, limits, EOS, counts)
    assert kept_prompt == prompt[-cap:]
    assert len(kept_prompt) + len(kept) <= limits.total
    if len(response) <= limits.total - len(kept_prompt):
        assert kept == response
        assert counts.responses_cut == 0
    else:
        assert len(kept_prompt) + len(kept) == limits.total
        assert kept[-1] == EOS
        assert kept[:-1] == response[: len(kept) - 1]
        assert counts.responses_cut == 1
    assert counts.prompts_cut == (len(prompt) > cap)


def test_a_response_that_fits_keeps_its_last_token() -> None:
    assert truncate_response([1, 2, 3], 3, EOS, CutCounts()) == [1, 2, 3]
    assert truncate_response([1, 2, 3, 4], 3, EOS, CutCounts()) == [1, 2, EOS]


def test_the_paper_scale_limits_are_the_default() -> None:
    assert (Limits().prompt, Limits().total) == (1728, 2048)


def test_a_long_prompt_can_be_refused() -> None:
    limits = Limits(3, 8, on_long_prompt="error")
    with pytest.raises(DataError, match=r"field 'prompt': the prompt has 4 tokens, the cap is 3"):
        truncate_sequence([1] * 4, [2], limits, EOS, CutCounts())


def test_counts_say_what_was_cut() -> None:
    counts = CutCounts()
    for length in (2, 5):
        truncate_sequence([1] * length, [2] * length, Limits(3, 6), EOS, counts)
    assert str(counts) == "1 of 2 prompts cut on the left, 1 of 2 responses cut on the right"


@pytest.mark.parametrize(("prompt", "total"), [(8, 8), (0, 8), (9, 8)])
def test_limits_that_contradict_each_other_are_refused(prompt: int, total: int) -> None:
    with pytest.raises(RecipeError, match=f"prompt limit {prompt} and total limit {total}"):
        Limits(prompt, total)
