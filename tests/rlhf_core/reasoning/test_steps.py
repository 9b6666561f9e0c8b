"""Steps of solutions: where they are cut, their labels, and how a named step is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.reasoning.steps import (
    kept_before,
    locating_target,
    named_step,
    says_correct,
    split_steps,
    step_spans,
)

TEXTS = st.text(st.sampled_from("ab1.? \n["), max_size=24)


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6.", ["1 + 2 = 3.", "3 * 2 = 6.", "The answer is 6."]),
        ("It costs 1.25. Is it much? No.", ["It costs 1.25.", "Is it much?", "No."]),
        ("First. Second.\nThird.", ["First. Second.", "Third."]),
        ("no end", ["no end"]),
        ("one.\n\n \ntwo", ["one.", "two"]),
        ("", []),
        (" \n ", []),
    ],
)
def test_lines_are_steps_and_sentences_where_there_is_one_line(text: str, steps: list[str]) -> None:
    assert split_steps(text) == steps


@given(TEXTS)
def test_steps_lie_in_order_and_leave_out_white_space_only(text: str) -> None:
    ends = [0, *(place for span in step_spans(text) for place in span)]
    assert ends == sorted(ends)
    assert "".join("".join(split_steps(text)).split()) == "".join(text.split())


def test_behind_the_last_step_all_is_kept_and_a_new_one_begins() -> None:
    assert kept_before("a.\nb.", 2) == "a.\nb.\n"
    assert kept_before("a. b.", 7) == "a. b. "
    assert kept_before("a.\nb.", 0) == ""


@pytest.mark.parametrize("step", [None, 0, 1, 10, 123])
def test_what_is_taught_is_what_is_read(step: int | None) -> None:
    target = locating_target(step)
    assert (named_step(target), says_correct(target)) == (step, step is None)


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("[2]", 2),
        ("2", 2),
        ("[10]", 10),
        ("It is step [3], I think.", 3),
        ("Correct.", None),
        ("[1] or [2]", None),
        ("not correct", None),
        ("I cannot say.", None),
        ("", None),
    ],
)
def test_a_step_is_read_only_where_exactly_one_is_named(text: str, step: int | None) -> None:
    assert named_step(text) == step
    assert says_correct(text) == (text == "Correct.")
