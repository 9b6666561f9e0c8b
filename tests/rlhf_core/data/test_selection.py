from __future__ import annotations

import pytest

from rlhf_core.data.selection import PreferenceFilter
from rlhf_core.errors import DataError, RecipeError

from .conftest import pair

SCORES = {"score_chosen": 2.0, "score_rejected": 1.0}


def count_words(text: str) -> int:
    return len(text.split())


def test_each_filter_removes_and_counts_its_rows() -> None:
    rows = [
        pair(1, **SCORES),
        pair(2, score_chosen=1.0, score_rejected=1.0),
        pair(3, chosen="Full of Confidence.", **SCORES),
        pair(4, rejected="w " * 512, **SCORES),
        pair(5, prompt="Question 1?", **SCORES),
        pair(6),
        pair(7, chosen="w " * 511, **SCORES),
    ]
    kept, removed = PreferenceFilter().apply(rows, count_words)
    assert [row["id"] for row in kept] == ["pair-1", "pair-7"]
    assert removed == {
        "chosen score not above rejected": 1,
        "contains 'confidence'": 1,
        "rejected has 512 tokens or more": 1,
        "prompt seen before": 1,
        "no scores": 1,
    }
    assert len(kept) + removed.total() == len(rows)


def test_a_removed_pair_does_not_use_up_its_prompt() -> None:
    rows = [pair(1, chosen="confidence", **SCORES), pair(2, prompt="Question 1?", **SCORES)]
    assert [row["id"] for row in PreferenceFilter().apply(rows, count_words)[0]] == ["pair-2"]


def test_filters_can_be_switched_off() -> None:
    rows = [pair(1, chosen="confidence"), pair(2, prompt="Question 1?", rejected="w " * 999)]
    lenient = PreferenceFilter(None, require_score_order=False, forbidden_words=(), unique_prompts=False)
    assert lenient.apply(rows, count_words) == (rows, {})


def test_nothing_left_is_refused() -> None:
    with pytest.raises(DataError, match=r"no pair passes.*no scores 1"):
        PreferenceFilter().apply([pair(1)], count_words)
    with pytest.raises(RecipeError, match="empty word"):
        PreferenceFilter(forbidden_words=("",))
    with pytest.raises(RecipeError, match="max_tokens is 0"):
        PreferenceFilter(max_tokens=0)
