"""Questions of the testbed and the truth about their solutions."""

from __future__ import annotations

import random
from typing import Any

import pytest

from rlhf_core.minimum_editing import edit_distance
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.steps import split_steps
from rlhf_core.testbed.arithmetic import ArithmeticConfig
from rlhf_core.testbed.oracle import first_error, minimal_edit
from rlhf_core.testbed.reasoning import TESTS, Reasoning, ReasoningConfig

MADE = Reasoning(ReasoningConfig(ArithmeticConfig(seen_start=(1, 9), unseen_start=(3, 14), largest=99)))
SETS = [(task, test) for task, tests in TESTS.items() for test in (None, *tests)]


@pytest.mark.parametrize(("task", "test"), SETS)
def test_every_solution_is_right_and_the_oracle_finds_nothing_in_it(task: str, test: str | None) -> None:
    for row in MADE.questions(task, 40, 3, test):
        assert is_right(extract_answer(row["solution"], row), row)
        assert first_error(row["meta"]["steps"], row["solution"]) is None
        assert minimal_edit(row["meta"]["steps"], row["solution"]) == row["solution"]
        assert all(
            line in lines for line, lines in zip(split_steps(row["solution"]), row["meta"]["steps"], strict=True)
        )


STEPS = [["1 + 2 = 3.", "So 1 + 2 = 3.", "2 + 1 = 3."], ["3 * 2 = 6."], ["The answer is 6."]]


@pytest.mark.parametrize(
    ("prediction", "step", "edited"),
    [
        ("2 + 1 = 4.\n4 * 2 = 8.\nThe answer is 8.", 0, "2 + 1 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("So 1 + 2 = 3.\n3 * 2 = 5.\nThe answer is 5.", 1, "So 1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\nThe answer is 3.", 1, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\n3 * 2 = 6.", 2, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6.\nBye.", 3, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("", 0, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
        ("nonsense", 0, "1 + 2 = 3.\n3 * 2 = 6.\nThe answer is 6."),
    ],
)
def test_the_oracle_keeps_wordings_and_corrects_what_is_wrong(prediction: str, step: int, edited: str) -> None:
    assert first_error(STEPS, prediction) == step
    assert minimal_edit(STEPS, prediction) == edited


@pytest.mark.parametrize("task", TESTS)
def test_no_right_solution_is_nearer_than_the_minimal_edit(task: str) -> None:
    rng = random.Random(0)
    for row in MADE.questions(task, 25, 5):
        steps: list[list[str]] = row["meta"]["steps"]
        words: list[Any] = [rng.choice(lines) for lines in steps]
        words[rng.randrange(len(words))] = rng.choice(("", "nonsense here.", words[0]))
        prediction = "\n".join(word for word in words if word)
        best = _words(minimal_edit(steps, prediction), prediction)
        for _ in range(30):
            assert best <= _words("\n".join(rng.choice(lines) for lines in steps), prediction)


def _words(text: str, other: str) -> int:
    from rlhf_core.testbed.oracle import _WORD

    known: dict[str, int] = {}
    return edit_distance(*([known.setdefault(w, len(known)) for w in _WORD.findall(each)] for each in (text, other)))
