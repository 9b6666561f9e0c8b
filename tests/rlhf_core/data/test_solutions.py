"""Sampled solutions: what is read of their files, and which of them are paired."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data.solutions import ALL_SOLUTIONS, LearntSolutions, edits, ground_truths, pairs
from rlhf_core.errors import DataError


def row(name: str, *, correct: bool = True, **changes: Any) -> dict[str, Any]:
    made = {"id": name, "question_id": name.split("-")[0], "prompt": "?", "solution": "truth", "answer": "1"}
    return made | {"prediction": f"text {name}", "correct": correct} | changes


def test_only_accepted_rewrites_that_change_something_are_edits() -> None:
    base = {"id": "a", "prompt": "?", "prediction": "1 + 1 = 3", "accepted": True}
    rows = [
        {**base, "rewrite": "1 + 1 = 2"},
        {**base, "id": "same", "rewrite": "1 + 1 = 3"},
        {**base, "id": "prose", "rewrite": "Sorry.", "accepted": False, "reason": "wrong answer"},
        {**base, "id": "nothing", "rewrite": None, "accepted": False},
    ]
    assert [row["id"] for row in edits(rows)] == ["a"]


def test_every_question_has_its_ground_truth_once_in_order() -> None:
    found = ground_truths([row("q-1"), row("q-2"), row("p-1"), row("q-3")])
    assert [sample["id"] for sample in found] == ["q-1", "p-1"]


def test_pairs_are_of_one_question_and_use_every_distinct_prediction_once() -> None:
    made = pairs(
        [
            row("q-1"),
            row("q-2", prediction="text q-1"),  # the same again
            row("q-3", correct=False),
            row("q-4", correct=False),
            row("p-1", correct=False),  # nothing right to compare with
            row("r-1"),
        ]
    )
    assert [(pair["chosen"], pair["rejected"], pair["question_id"]) for pair in made] == [("text q-1", "text q-3", "q")]


def test_failed_wrong_solutions_and_repeated_right_ones_are_left_out_where_settings_say_so() -> None:
    drawn = [
        row("a-1", prediction="1 + 1 = 2."),
        row("a-2", prediction="1+1 = 2"),  # the same text but for blanks and full stops
        row("a-3", prediction="it is 2"),
        row("a-4", prediction="two"),
        row("a-5", correct=False),
        row("b-1", correct=False),
    ]

    def names(chosen: LearntSolutions) -> list[str]:
        return [sample["id"] for sample in chosen.choose(drawn, {"a-5"}, seed=0)]

    assert names(ALL_SOLUTIONS) == ["a-1", "a-2", "a-3", "a-4", "a-5", "b-1"]
    assert names(LearntSolutions(failed=False)) == ["a-1", "a-2", "a-3", "a-4", "a-5"]
    assert names(LearntSolutions(most_right=5)) == ["a-1", "a-3", "a-4", "a-5", "b-1"]
    assert names(LearntSolutions(failed=False, most_right=2))[-1] == "a-5"
    with pytest.raises(DataError, match="none of 1 sampled solutions stays"):
        LearntSolutions(failed=False).choose([row("b-1", correct=False)], set(), seed=0)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 3)), min_size=1), st.integers(1, 3))
def test_chosen_right_solutions_are_distinct_and_as_many_as_there_are_up_to_the_most(
    drawn: list[tuple[int, bool, int]], most: int
) -> None:
    rows = [
        row(f"{question}-{place}", correct=correct, prediction=f"solution {text}")
        for place, (question, correct, text) in enumerate(drawn)
    ]
    chosen = LearntSolutions(most_right=most).choose(rows, set(), seed=1)
    assert chosen == LearntSolutions(most_right=most).choose(rows, set(), seed=1)
    assert [sample["id"] for sample in chosen if not sample["correct"]] == [
        one["id"] for one in rows if not one["correct"]
    ]
    for question in {one["question_id"] for one in rows}:
        known = {one["prediction"] for one in rows if one["question_id"] == question and one["correct"]}
        kept = [sample["prediction"] for sample in chosen if sample["question_id"] == question and sample["correct"]]
        assert len(kept) == len(set(kept)) == min(most, len(known))
