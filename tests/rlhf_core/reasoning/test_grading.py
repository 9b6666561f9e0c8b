"""Answers of sampled solutions."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_core.reasoning.grading import extract_answer, is_right, question_prompt, with_answer

NUMBER: dict[str, Any] = {"answer": "18"}
EXPRESSION: dict[str, Any] = {"answer": "x^2"}
CHOICE: dict[str, Any] = {"answer": "stress", "choices": ["hard work", "stress", "A plan"]}


@pytest.mark.parametrize(
    ("text", "question", "answer", "right"),
    [
        ("9 + 9 = 18.\nThe answer is 18.", NUMBER, "18", True),
        ("The answer is 17", NUMBER, "17", False),
        ("It is 18.0.", NUMBER, "18.0", True),
        ("I do not know.", NUMBER, None, False),
        ("", NUMBER, None, False),
        ("The answer is 17 or 18.", NUMBER, None, False),
        ("So \\boxed{\\frac{36}{2}}.", NUMBER, "\\frac{36}{2}", True),
        ("So \\boxed{x^2}.", EXPRESSION, "x^2", True),
        ("The answer is x^2.", EXPRESSION, "x^2", True),
        ("It is x^2.", EXPRESSION, None, False),
        ("So \\boxed{6} each. The answer is 18.", NUMBER, "18", True),
        ("So \\boxed{6} each.\nThe answer is\n$\\boxed{18}$, all told.", NUMBER, "18", True),
        ("So \\boxed{18}. The answer is unknown.", NUMBER, None, False),
        ("So \\boxed{x}. The answer is x^2.", EXPRESSION, "x^2", True),
        ("The answer is 6-i.", {"answer": "6+i"}, "6-i", False),
        ("The answer is 12.", {"answer": "1,2"}, "12", False),
        ("The answer is $1\\frac45$.", {"answer": "9/5"}, "$1\\frac45$", True),
        ("The answer is –18.", NUMBER, "–18", False),
        ("The answer is –18.", {"answer": "-18"}, "–18", True),
        ("So it is hard work.\nThe answer is stress.", CHOICE, "stress", True),
        ("The answer is (B).", CHOICE, "stress", True),
        ("The answer is B, not hard work.", CHOICE, "stress", True),
        ("So \\boxed{hard work}? The answer is stress.", CHOICE, "stress", True),
        ("The answer is a plan.", CHOICE, "A plan", False),
        ("The answer is nothing.", CHOICE, None, False),
        ("I doubt the answer is 18.", NUMBER, None, False),
        ("I don't think the answer is x^2.", EXPRESSION, None, False),
        ("I doubt that the answer is stress.", CHOICE, None, False),
        ("The answer is -\\boxed{18}.", NUMBER, "-18", False),
        ("The answer is 18 is wrong.", NUMBER, None, False),
        ("The answer is 18 million.", {"answer": "18000000"}, "18 million", True),
        ("The answer is -\\boxed{18}.", {"answer": "-18"}, "-18", True),
    ],
)
def test_answers_are_read_and_compared(text: str, question: dict[str, Any], answer: str | None, right: bool) -> None:
    found = extract_answer(text, question)
    assert found == answer
    assert is_right(found, question) == right


def test_prompts_show_the_choices() -> None:
    assert question_prompt("What?", ["one", "two"]) == "What?\n(A) one (B) two"
    assert question_prompt("What?", []) == "What?"


@pytest.mark.parametrize(
    ("solution", "whole"),
    [("1 + 1 = 2.", "1 + 1 = 2.\nThe answer is 2"), (None, "The answer is 2"), ("#### 2", "#### 2")],
)
def test_solutions_end_with_their_answer(solution: str | None, whole: str) -> None:
    assert with_answer(solution, "2") == whole
