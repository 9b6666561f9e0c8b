"""Arithmetic word problems with step-by-step solutions."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.knowledge import wordings
from rlhf_core.typed import Checked, between

WORDS = wordings("tasks")["word_problems"]
NAMES: dict[str, list[str]] = WORDS["names"]


@dataclass(frozen=True)
class ArithmeticConfig(Checked):
    """The difficulty dial of the word problems.

    Attributes:
        steps: probabilities of one, two and three steps.
        seen_start: range of the first number in the `seen` split (and in training).
        unseen_start: the same in the `unseen` split.
        operand: range of the number that a step adds or takes away.
        largest: no intermediate result exceeds it; at most 99.
        multiply_share: probability that a step multiplies (by 2 or 3) where the result stays in range.
    """

    steps: tuple[float, float, float] = (0.5, 0.35, 0.15)
    seen_start: tuple[int, int] = (1, 6)
    unseen_start: tuple[int, int] = (3, 9)
    operand: tuple[int, int] = (1, 5)
    largest: Annotated[int, between(1, 99)] = 9
    multiply_share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, (low, high) in (("seen_start", self.seen_start), ("unseen_start", self.unseen_start)):
            if not 1 <= low <= high <= self.largest:
                raise RecipeError(f"{name} must be within 1 and largest={self.largest}, not {low} to {high}")
        if not 1 <= self.operand[0] <= self.operand[1]:
            raise RecipeError(f"operand must be a range from at least 1, not {self.operand}")


def _step(value: int, config: ArithmeticConfig, rng: random.Random) -> tuple[str, int, int]:
    """Returns a step from `value`: operation, operand, result; the result lies within 1 and `largest`."""
    results = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    while True:
        operation = "*" if rng.random() < config.multiply_share else rng.choice("+-")
        operand = rng.randint(2, 3) if operation == "*" else rng.randint(*config.operand)
        result = results[operation](value, operand)
        if 1 <= result <= config.largest:
            return operation, operand, result


def problem(split: str, config: ArithmeticConfig, rng: random.Random) -> dict[str, Any]:
    """Returns a word problem {question, solution, answer, meta}; the solution ends with `#### answer`.

    `unseen` uses other names, phrases (of the same words) and first numbers than `seen`; training uses `seen` only.
    """
    subject = rng.choice(NAMES[split])
    thing = rng.choice(WORDS["things"])
    value = rng.randint(*(config.seen_start if split == "seen" else config.unseen_start))
    sentences, lines = [f"{subject} has {value} {thing}."], []
    count = rng.choices((1, 2, 3), config.steps)[0]
    for _ in range(count):
        operation, operand, result = _step(value, config, rng)
        template = rng.choice(WORDS["steps"][split][operation])
        sentences.append(template.replace("{k}", str(operand)))
        lines.append(f"{value} {operation} {operand} = {result}")
        value = result
    sentences.append(rng.choice(WORDS["asked"][split]))
    text = " ".join(sentence.replace("{S}", subject).replace("{T}", thing) for sentence in sentences)
    return {
        "question": text,
        "solution": "\n".join([*lines, f"#### {value}"]),
        "answer": str(value),
        "meta": {"task": "arithmetic", "split": split, "steps": count},
    }


def slip(solution: str, rng: random.Random) -> str:
    """Returns the solution with a slip in its last step, carried into the answer: an error of one to three."""
    *lines, last, final = solution.split("\n")
    left, result = last.rsplit(" = ", 1)
    wrong = int(result) + rng.choice((-2, -1, 1, 2, 3))
    wrong = int(result) + 1 if wrong < 0 else wrong
    return "\n".join([*lines, f"{left} = {wrong}", final.replace(result, str(wrong))])
