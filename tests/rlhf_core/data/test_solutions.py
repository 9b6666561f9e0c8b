"""Sampled solutions: what is read of their files, and which of them are paired."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.data.solutions import (
    Sample,
    ground_truths,
    pairs,
    read_rewrites,
    read_samples,
    read_token_rewards,
)
from rlhf_core.errors import DataError


def row(name: str, *, correct: bool = True, **changes: Any) -> dict[str, Any]:
    made = {"id": name, "question_id": name.split("-")[0], "prompt": "?", "solution": "truth", "answer": "1"}
    return made | {"prediction": f"text {name}", "correct": correct} | changes


def samples(*rows: dict[str, Any]) -> list[Sample]:
    return read_samples(rows, "samples.jsonl")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "there is no sampled solution"),
        ([row("q-1"), row("q-1")], "an id is used twice"),
        ([row("q-1"), row("q-2", prediction=None)], r"row 2, field 'prediction': is None, expected str"),
        ([row("q-1", correct="yes")], r"field 'correct'"),
    ],
)
def test_samples_that_cannot_be_used_are_named(rows: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_samples(rows, "samples.jsonl")


def test_only_accepted_rewrites_that_change_something_are_read() -> None:
    base = {"id": "a", "prompt": "?", "prediction": "1 + 1 = 3"}
    rows = [
        {**base, "rewrite": "1 + 1 = 2", "accepted": True},
        {**base, "id": "same", "rewrite": "1 + 1 = 3", "accepted": True},
        {**base, "id": "prose", "rewrite": "Sorry.", "accepted": False, "reason": "wrong answer"},
        {**base, "id": "nothing", "rewrite": None, "accepted": False},
    ]
    assert [rewrite.id for rewrite in read_rewrites(rows, "rewrites.jsonl")] == ["a"]
    with pytest.raises(DataError, match="field 'rewrite'"):
        read_rewrites([{**base, "rewrite": None, "accepted": True}], "rewrites.jsonl")


def test_token_rewards_have_one_number_per_token() -> None:
    found = read_token_rewards([{"id": "a", "token_ids": [5, 6], "rewards": [0.5, 0.0]}], "token_rewards.jsonl")
    assert list(found["a"].rewards) == [0.5, 0.0]
    with pytest.raises(DataError, match="1 rewards for 2 tokens"):
        read_token_rewards([{"id": "a", "token_ids": [5, 6], "rewards": [0.5]}], "token_rewards.jsonl")


def test_every_question_has_its_ground_truth_once_in_order() -> None:
    found = ground_truths(samples(row("q-1"), row("q-2"), row("p-1"), row("q-3")))
    assert [sample.id for sample in found] == ["q-1", "p-1"]


def test_pairs_are_of_one_question_and_use_every_distinct_prediction_once() -> None:
    made = pairs(
        samples(
            row("q-1"),
            row("q-2", prediction="text q-1"),  # the same again
            row("q-3", correct=False),
            row("q-4", correct=False),
            row("p-1", correct=False),  # nothing right to compare with
            row("r-1"),
        )
    )
    assert [(pair["chosen"], pair["rejected"], pair["question_id"]) for pair in made] == [("text q-1", "text q-3", "q")]
