"""Acceptance of rewrites."""

from __future__ import annotations

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.reasoning.rewriting import REASONS, RewriteLimits, WrongSolution, judged

PREDICTION = "1 + 2 = 4.\nThe answer is 4."
WRONG = WrongSolution("q/0", {"id": "q", "prompt": "1 and 2?", "solution": "", "answer": "3"}, PREDICTION)
LIMITS = RewriteLimits(most_steps=4, most_tokens=40, most_edits=0.5)


def letters(text: str) -> list[int]:
    return list(text.encode())


def test_a_near_and_right_rewrite_is_accepted_with_its_distance() -> None:
    assert judged(WRONG, "1 + 2 = 3.\nThe answer is 3.", letters, LIMITS) == ("", 2)


@pytest.mark.parametrize(
    ("rewrite", "reason"),
    [
        ("", "empty"),
        (" \n", "empty"),
        (PREDICTION, "same text"),
        (f"{PREDICTION}\n", "same text"),
        ("1 + 2 = 3." * 8 + "\nThe answer is 3.", "too long"),
        ("a\nb\nc\nd\nThe answer is 3", "too many steps"),
        ("I cannot help with that.", "no answer"),
        ("1 + 2 = 5.\nThe answer is 5.", "wrong answer"),
        ("Three", "no answer"),
        ("It must be\n#### 3", "too many edits"),
    ],
)
def test_what_is_refused_says_why(rewrite: str, reason: str) -> None:
    assert judged(WRONG, rewrite, letters, LIMITS)[0] == reason
    assert reason in REASONS


def test_limits_out_of_range_are_refused() -> None:
    with pytest.raises(RecipeError, match="most_edits is 0; it must be above 0 and at most 1"):
        RewriteLimits(most_edits=0)
