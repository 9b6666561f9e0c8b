"""ALARM's judge prompt is the paper's Figure 6 to the letter, and only its two answers are verdicts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from rlhf_core.evaluation.judges.games import JudgedPair, combine_orders, play_games
from rlhf_core.evaluation.judges.protocol import JudgeRequest
from rlhf_core.evaluation.judges.replies import parse_output_pair
from rlhf_core.evaluation.judges.templates import get_template

FIGURE_6 = """Select the output (a) or (b) that best matches the given instruction. Choose your preferred output, \
which can be subjective. Your answer should ONLY contain: Output (a) or Output (b). Here's an example:

# Example:
## Instruction:
Give a description of the following job: "ophthalmologist"

## Output (a):
An ophthalmologist is a medical doctor who pokes and prods at your eyes while asking you to read letters from a chart.

## Output (b):
An ophthalmologist is a medical doctor who specializes in the diagnosis and treatment of eye diseases and conditions.

## Which is best, Output (a) or Output (b)?
Output (b)

Here the answer is Output (b) because it provides a comprehensive and accurate description of the job of an \
ophthalmologist. In contrast, output (a) is more of a joke.

# Task:
Now is the real task, do not explain your answer, just say Output (a) or Output (b).

## Instruction:
What is {braced}?

## Output (a):
One.

## Output (b):
Two.

## Which is best, Output (a) or Output (b)?"""


def test_the_prompt_is_the_papers() -> None:
    template = get_template("output_pair")
    assert template.user(JudgeRequest("1", "What is {braced}?", ("One.", "Two."), "output_pair")) == FIGURE_6
    assert template.system == (
        "You are a helpful instruction-following assistant that prints the best model by selecting the best outputs "
        "for a given instruction."
    )


@pytest.mark.parametrize(
    ("text", "label"),
    [("Output (a)", "A"), ("Output (b)", "B"), ("  Output (a).\n", "A"), ("\nOutput (b)\n", "B")],
)
def test_its_two_answers_are_verdicts(text: str, label: str) -> None:
    assert parse_output_pair(text).label == label


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Output (c)",
        "output (a)",
        "Output a",
        "(a)",
        "a",
        "Output (a) or Output (b)",
        "Output (a)\nOutput (b)",
        "Output (a) because it is better",
        "I prefer Output (a)",
    ],
)
def test_anything_else_is_none(text: str) -> None:
    assert not parse_output_pair(text).valid


class Says:
    """Answers as told, the baseline being shown first in the first game and second in the second."""

    name = "says"

    def __init__(self, *texts: str) -> None:
        self.texts, self.shown = texts, list[tuple[str, ...]]()

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        self.shown += [request.answers for request in requests]
        return [self.texts[request.answers[0] == "mine"] for request in requests]


@pytest.mark.parametrize(
    ("baseline_first", "model_first", "result"),
    [
        ("Output (b)", "Output (a)", "win"),
        ("Output (a)", "Output (b)", "loss"),
        ("Output (a)", "Output (a)", "tie"),
        ("Output (b)", "Output (b)", "tie"),
        ("Output (b)", "Both.", "invalid"),
    ],
)
def test_both_orders_are_asked_and_must_agree(baseline_first: str, model_first: str, result: str) -> None:
    judge = Says(baseline_first, model_first)
    games = play_games(judge, [JudgedPair("1", "Which?", "mine", "theirs")], "output_pair")
    assert judge.shown[:2] == [("theirs", "mine"), ("mine", "theirs")]
    assert [outcome.result for outcome in combine_orders(games, "agreement")] == [result]
