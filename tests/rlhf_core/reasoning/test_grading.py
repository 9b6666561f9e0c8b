"""Prompts of questions and the answers that solutions end with; how answers are read is in replies.yaml."""

from __future__ import annotations

import pytest

from rlhf_core.reasoning.grading import question_prompt, with_answer


def test_prompts_show_the_choices() -> None:
    assert question_prompt("What?", ["one", "two"]) == "What?\n(A) one (B) two"
    assert question_prompt("What?", []) == "What?"


@pytest.mark.parametrize(
    ("solution", "whole"),
    [("1 + 1 = 2.", "1 + 1 = 2.\nThe answer is 2"), (None, "The answer is 2"), ("#### 2", "#### 2")],
)
def test_solutions_end_with_their_answer(solution: str | None, whole: str) -> None:
    assert with_answer(solution, "2") == whole
