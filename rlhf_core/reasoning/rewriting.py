"""Rewrites of wrong solutions: what makes one acceptable, and the answers of whoever makes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rlhf_core.errors import RecipeError
from rlhf_core.minimum_editing import edit_distance
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.steps import split_steps


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
    """What a teacher or model says: the raw texts of both tasks.

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
        """Which teacher it is, for the record."""

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """One correction for each, in order; an empty rewrite where there is no answer."""

    def costs(self) -> dict[str, float]:
        """Calls, tokens and money so far."""


@dataclass(frozen=True)
class RewriteLimits:
    """What is accepted as a rewrite.

    Attributes:
        most_steps: steps of the prediction and of the rewrite.
        most_tokens: of the rewrite.
        most_edits: edit distance as a share of the longer of both.
    """

    most_steps: int = 10
    most_tokens: int = 512
    most_edits: float = 0.8

    def __post_init__(self) -> None:
        if self.most_steps < 1 or self.most_tokens < 1 or not 0 < self.most_edits <= 1:
            raise RecipeError(f"limits of rewrites out of range: {self}")


@dataclass(frozen=True)
class Verdict:
    """Whether a rewrite is accepted, with the reason where it is not, and its edit distance in tokens."""

    accepted: bool
    reason: str
    edit_distance: int


def judged(
    wrong: WrongSolution, rewrite: str, encode: Callable[[str], Sequence[int]], limits: RewriteLimits
) -> Verdict:
    """Verifies a rewrite: it says something else than the prediction, is right, and near enough.

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
    reason = next((reason for found, reason in problems if found), "")
    return Verdict(not reason, reason, distance)


REASONS = ("empty", "same text", "too long", "too many steps", "no answer", "wrong answer", "too many edits")
"""Why a rewrite is refused, in the order in which it is checked."""
