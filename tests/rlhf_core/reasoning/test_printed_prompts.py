"""The prompts of teachers and generative reward models, word for word. Source: RLMEC, Tables 5 and 6."""

from __future__ import annotations

import pytest

from rlhf_core.reasoning.templates import PAPER, REWRITTEN, SHORT, TEACHER

LABEL = "[0] r0.\n[1] r1."
LOCATING = (
    "Given the problem, correct solution and the prediction from language models. The method in prediction might be "
    "different with correct solution, but it is also correct. You need to identify which step of the prediction is the "
    "first wrong step, and write down the label of the first wrong step."
)
REWRITING = (
    "Given the problem and the correct solution, you need to correct the mistakes in prediction to get the correct "
    "answer. You should make minimal modifications."
)
ALPACA = "Below is an instruction that describes a task. Write a response that appropriately completes the request."


def words(text: str) -> list[str]:
    """Line breaks of the printed tables are not known."""
    return text.split()


def test_the_models_prompts_are_those_of_table_6() -> None:
    locating = f"""{ALPACA} ### Instruction: {LOCATING} ### Input: Problem: q Correct solution: {LABEL}
        Prediction: [0] s0. ### Response:"""
    rewriting = f"""{ALPACA} ### Instruction: {REWRITING} ### Input: Problem: q Correct solution: r0. r1.
        Prediction: s0. ### Response: Correct prediction:"""
    assert words(PAPER.locating("q", "r0. r1.", "s0.")) == words(locating)
    assert words(PAPER.rewriting("q", "r0. r1.", "s0.") + REWRITTEN) == words(rewriting)


def test_a_teachers_prompts_are_those_of_table_5_with_the_correct_solution_in_its_place() -> None:
    locating = f"""{LOCATING} Problem: q Correct solution: {LABEL} Prediction: [0] s0.
        Which step of prediction is error? Only write down the label of the first wrong step. If the prediction is
        correct, you need to write down correct. You should not write down any other words."""
    rewriting = f"{REWRITING} Problem: q Correct solution: r0. r1. Prediction: s0. Correct prediction:"
    assert words(TEACHER.locating("q", "r0. r1.", "s0.")) == words(locating)
    assert words(TEACHER.rewriting("q", "r0. r1.", "s0.")) == words(rewriting)


@pytest.mark.parametrize("template", [PAPER, SHORT, TEACHER])
def test_texts_that_look_like_slots_stay_as_they_are(template: object) -> None:
    assert isinstance(template, type(PAPER))
    text = template.rewriting("{solution}", "{prediction}", "{problem}")
    found = [text.index(slot) for slot in ("{solution}", "{prediction}", "{problem}")]
    assert found == sorted(found)
