"""Answers to a training set's questions while a policy trains, and answers that open with given words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.templates import encode_text
from rlhf_core.models.policy import Policy
from tasks.evaluating.policies import Evaluator
from tasks.evaluating.solving import graded
from tasks.running.amounts import first_rows


@dataclass
class Opened(Encoder):
    """An encoder that adds the first words of the answer to its prompts.

    Args:
        opening: those words, behind which the policy was trained to answer.
    """

    opening: str = ""

    @classmethod
    def of(cls, encoder: Encoder, opening: str) -> Opened:
        return cls(**{f.name: getattr(encoder, f.name) for f in fields(Encoder) if f.init}, opening=opening)

    def prompt(self, row: Mapping[str, Any]) -> list[int]:
        return [*super().prompt(row), *encode_text(self.tokenizer, self.opening)]

    def sequence(self, row: Mapping[str, Any], response: str) -> EncodedSequence:
        given = super().sequence(row, response)
        return EncodedSequence(self.prompt(row), given.response)


def question_accuracies(evaluator: Evaluator, policy: Policy, count: int) -> dict[str, float]:
    """Returns the percent of right greedy answers to the first `count` training questions; empty where the data has
    none."""
    known = evaluator.items("questions")
    asked = first_rows(known, count, "checkpoint_prompts", evaluator.data / "questions.jsonl") if known else []
    if not asked:
        return {}
    answers = evaluator.greedy_answers(policy, asked)
    right = [graded(question, text)["right"] for question, (text, _) in zip(asked, answers, strict=True)]
    return {"train_accuracy": 100 * sum(right) / len(right)}
