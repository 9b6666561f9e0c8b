"""Rewrites of wrong solutions: what makes one acceptable, and the answers of whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from rlhf_core.minimum_editing import edit_distance
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.steps import split_steps
from rlhf_core.typed import Checked, at_least, between


@dataclass(frozen=True)
class WrongSolution:
    """A prediction to be corrected.

    Attributes:
        id: of the sample.
        question: its row: id, prompt, solution, answer, choices of multiple choice, meta.
        prediction: the wrong solution.
    """

    id: str
    question: Mapping[str, Any]
    prediction: str


@dataclass(frozen=True)
class Correction:
    """Raw answers of a teacher or model to both tasks.

    Attributes:
        located: answer to the locating prompt, such as `[2]`.
        rewrite: the corrected solution.
    """

    located: str
    rewrite: str


class Teacher(Protocol):
    """Corrects solutions; implementations are an endpoint, a local model, and the testbed's oracle."""

    @property
    def name(self) -> str:
        """Returns the teacher's name, for the record."""

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """Returns one correction for each, in order; an empty rewrite where there is no answer."""

    def costs(self) -> dict[str, float]:
        """Returns calls, tokens and money so far."""


@dataclass(frozen=True)
class RewriteLimits(Checked):
    """Limits that an accepted rewrite keeps to.

    Attributes:
        most_steps: steps of the prediction and of the rewrite.
        most_tokens: of the rewrite.
        most_edits: edit distance as a share of the longer of both.
    """

    most_steps: Annotated[int, at_least(1)] = 10
    most_tokens: Annotated[int, at_least(1)] = 512
    most_edits: Annotated[float, between(0, 1, open_low=True)] = 0.8


def judged(
    wrong: WrongSolution, rewrite: str, encode: Callable[[str], Sequence[int]], limits: RewriteLimits
) -> tuple[str, int]:
    """Returns why a rewrite is refused, one of `REASONS`, and its edit distance in tokens; '' for one that says
    something else than the prediction, is right, and near enough.

    Args:
        wrong: the prediction with its question.
        rewrite: the proposed correction.
        encode: tokens of a text; distances are counted in them.
        limits: what is too long or too different.
    """
    before, after = encode(wrong.prediction), encode(rewrite)
    distance = edit_distance(before, after)
    extracted = extract_answer(rewrite, wrong.question) if rewrite.strip() else None
    problems = (
        (not rewrite.strip(), "empty"),
        (rewrite.strip() == wrong.prediction.strip(), "same text"),
        (len(after) > limits.most_tokens, "too long"),
        (max(len(split_steps(text)) for text in (wrong.prediction, rewrite)) > limits.most_steps, "too many steps"),
        (extracted is None, "no answer"),
        (not is_right(extracted, wrong.question), "wrong answer"),
        (distance > limits.most_edits * max(len(before), len(after)), "too many edits"),
    )
    return next((reason for found, reason in problems if found), ""), distance


REASONS = ("empty", "same text", "too long", "too many steps", "no answer", "wrong answer", "too many edits")
"""Reasons for which a rewrite is refused, in the order in which it is checked."""
