"""Word problems and multiple-choice questions with step-by-step solutions in several wordings.

Every row's meta lists, for each step, the lines that are right there (`steps`), so the truth about any text is known:
its first wrong step and the least edit that corrects it (`rlhf_core.testbed.oracle`).

Seen and unseen sets stand for the tasks of RLMEC, Table 3. Unseen ones use other wordings, numbers and combinations of
animals. Names are those of training: a small model spells a new one letter by letter and loses the thread.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, KnowledgeBase, Row, drawn_rows, stream, wordings
from rlhf_core.testbed.tasks import NAMES, ArithmeticConfig, word_problem
from rlhf_core.typed import Checked, between

VERSION = 1
"""Version of the questions: any change of what a seed produces steps it."""

#: Task -> {test set: seen or unseen}, after the columns of Table 3.
TESTS: Mapping[str, Mapping[str, str]] = {
    "mathematics": {"gsm8k": "seen", "math": "seen", "svamp": "unseen", "mm": "unseen"},
    "multiple_choice": {"ecqa": "seen", "qasc": "seen", "obqa": "unseen", "arc": "unseen"},
}

_WORDS = wordings("tasks")["reasoning"]
_MOST: dict[str, str] = _WORDS["most"]


@dataclass(frozen=True)
class ReasoningConfig(Checked):
    """The difficulty dial.

    Attributes:
        arithmetic: numbers and steps of the word problems.
        hard_steps: probabilities of one, two and three steps in the set `math`.
        slip: probability that a step of a supervised example is wrong; what follows is right from there on.
        myth_share: share of facts that supervised examples mostly tell wrong.
        myth: probability that such a fact is told wrong.
        options: choices of a question about animals.
    """

    arithmetic: ArithmeticConfig
    hard_steps: tuple[float, float, float] = (0.0, 0.4, 0.6)
    slip: Annotated[float, between(0, 1)] = 0.1
    myth_share: Annotated[float, between(0, 1)] = 0.3
    myth: Annotated[float, between(0, 1)] = 0.7
    options: Annotated[int, between(2, len(ENTITIES))] = 3


@dataclass(frozen=True)
class DrawnQuestion:
    """A question with its true steps, and one told by somebody who may err.

    Attributes:
        question, choices, answer: as asked; no choices for word problems.
        steps: for each step the lines that are right.
        told: a solution, one line of each step.
        right: whether the one told reaches the answer.
    """

    question: str
    choices: tuple[str, ...]
    answer: str
    steps: tuple[tuple[str, ...], ...]
    told: tuple[str, ...]
    right: bool


class Reasoning:
    """The questions of one world.

    Args:
        config: difficulty.
        seed: of the facts.
    """

    def __init__(self, config: ReasoningConfig, seed: int = 0) -> None:
        self.config, self.seed = config, seed
        self.knowledge = KnowledgeBase.draw(seed, VERSION)
        facts = sorted(self.knowledge.facts)
        drawn = stream("myths", VERSION, seed).sample(facts, round(config.myth_share * len(facts)))
        self.myths = frozenset(drawn)

    def questions(self, task: str, n: int, seed: int, test: str | None = None) -> list[Row]:
        """Returns rows {id, question, choices (of multiple choice), answer, answer_index, solution, source, meta}.

        Args:
            task: mathematics or multiple_choice.
            n: rows; texts are distinct as long as there are enough.
            seed: of the draw.
            test: a test set of the task; None for training questions.
        """
        seen = set()

        def make(rng: random.Random, _name: str) -> Row:
            for _ in range(20):
                drawn = self._draw(task, test, rng, errs=False)
                if (drawn.question, drawn.choices) not in seen:
                    break
            seen.add((drawn.question, drawn.choices))
            row: Row = {"question": drawn.question, "answer": drawn.answer, "solution": "\n".join(drawn.told)}
            if drawn.choices:
                row |= {"choices": list(drawn.choices), "answer_index": drawn.choices.index(drawn.answer)}
            return row | {"meta": {"task": task, "steps": [list(lines) for lines in drawn.steps]}}

        names = ("reasoning", VERSION, self.seed, task, test, seed)
        return drawn_rows(n, f"{task}-{test or 'train'}-{seed}", lambda number: stream(*names, number), make)

    def examples(self, task: str, n: int, seed: int) -> list[Row]:
        """Returns the supervised rows {id, question, choices, response, source, meta}; some of their steps are
        wrong."""

        def make(rng: random.Random, _name: str) -> Row:
            drawn = self._draw(task, None, rng, errs=True)
            row: Row = {"question": drawn.question, "choices": list(drawn.choices), "response": "\n".join(drawn.told)}
            return row | {"meta": {"task": task, "right": drawn.right}}

        names = ("examples", VERSION, self.seed, task, seed)
        return drawn_rows(n, f"{task}-sft-{seed}", lambda number: stream(*names, number), make)

    def _draw(self, task: str, test: str | None, rng: random.Random, *, errs: bool) -> DrawnQuestion:
        split = "seen" if test is None else TESTS[task][test]
        if task == "mathematics":
            return self._word_problem(test, split, rng, errs)
        return self._choice(test, split, rng, errs)

    # --- word problems -------------------------------------------------------------------------------

    def _word_problem(self, test: str | None, split: str, rng: random.Random, errs: bool) -> DrawnQuestion:
        config = self.config.arithmetic
        if test == "math" or (test is None and rng.random() < 0.5):
            config = ArithmeticConfig(**{**vars(config), "steps": self.config.hard_steps})
        if test == "svamp":
            config = ArithmeticConfig(**{**vars(config), "unseen_start": config.seen_start})
        item = word_problem(split, config, rng)
        for unseen, seen in zip(NAMES["unseen"], NAMES["seen"], strict=True):
            item["question"] = item["question"].replace(unseen, seen)
        equations = str(item["solution"]).split("\n")[:-1]
        steps = [
            tuple(p.replace("{e}", e) for e in _commuted(equation) for p in _WORDS["equation"])
            for equation in equations
        ]
        steps.append((_WORDS["answer"].replace("{v}", item["answer"]),))
        told, value = self._told_equations(equations, rng, errs)
        return DrawnQuestion(item["question"], (), item["answer"], tuple(steps), told, value == int(item["answer"]))

    def _told_equations(self, equations: Sequence[str], rng: random.Random, errs: bool) -> tuple[tuple[str, ...], int]:
        """Returns the steps as somebody tells them, who goes on from what they got; and what they got."""
        lines, value = [], int(equations[0].split(" ")[0])
        for equation in equations:
            _, operation, operand, _, _ = equation.split(" ")
            number = int(operand)
            result = {"+": value + number, "-": value - number, "*": value * number}[operation]
            if errs and rng.random() < self.config.slip:
                near = (result + off for off in (-10, -2, -1, 1, 2, 10))
                result = rng.choice([wrong for wrong in near if 0 <= wrong <= 99] or [1])
            result = min(max(result, 0), 99)
            lines.append(rng.choice(_WORDS["equation"]).replace("{e}", f"{value} {operation} {number} = {result}"))
            value = result
        return (*lines, _WORDS["answer"].replace("{v}", str(value))), value

    # --- multiple choice -----------------------------------------------------------------------------

    def _choice(self, test: str | None, split: str, rng: random.Random, errs: bool) -> DrawnQuestion:
        hop = test in ("qasc", "obqa") or (test is None and rng.random() < 0.5)
        while True:
            animals = rng.sample(ENTITIES, 2 if hop else self.config.options)
            attribute = rng.choice(sorted(_MOST) if hop or rng.random() < 0.4 else sorted(_WORDS["who"]))
            held_out = zlib.crc32(f"{' '.join(sorted(animals))} {attribute}".encode()) % 4 == 0
            if held_out == (split == "unseen"):
                break
        beliefs = {animal: self._belief(animal, attribute, rng, errs) for animal in animals}
        truth = {animal: self.knowledge.facts[animal, attribute] for animal in animals}
        steps = [_tell(attribute, animal, truth[animal]) for animal in animals]
        if attribute in _WORDS["who"]:  # who of these has a value: each one's value in turn
            right = rng.choice(animals)
            lines = [rng.choice(_tell(attribute, animal, beliefs[animal])) for animal in animals]
            question = _WORDS["who"][attribute][split == "unseen"].replace("{V}", truth[right])
            found = [animal for animal in animals if beliefs[animal] == truth[right]] or animals
            return _answered(question, animals, right, rng.choice(found), steps, lines)
        lines = [rng.choice(_tell(attribute, animal, beliefs[animal])) for animal in animals]
        best, believed = (max(animals, key=lambda animal: float(known[animal])) for known in (truth, beliefs))
        most = _MOST[attribute]
        steps.append(tuple(line.replace("{E}", best).replace("{M}", most) for line in _WORDS["most_told"]))
        lines.append(rng.choice(_WORDS["most_told"]).replace("{E}", believed).replace("{M}", most))
        if not hop:
            return _answered(_WORDS["most_asked"][split].replace("{M}", most), animals, best, believed, steps, lines)
        # another attribute of the one that is the tallest or heaviest
        other = rng.choice([name for name in ATTRIBUTES if name not in _MOST])
        value = self.knowledge.facts[best, other]
        told = self._belief(believed, other, rng, errs)
        steps.append(_tell(other, best, value))
        lines.append(rng.choice(_tell(other, believed, told)))
        listed = " or ".join(f"the {animal}" for animal in animals)
        question = _WORDS["hop_asked"][split].replace("{N}", other).replace("{M}", most).replace("{L}", listed)
        pool = {self.knowledge.facts[animal, other] for animal in ENTITIES} - {value}
        choices = [value, *rng.sample(sorted(pool - {told}), 2), *([told] if told != value else [])][:4]
        rng.shuffle(choices)
        return _answered(question, choices, value, told, steps, lines)

    def _belief(self, animal: str, attribute: str, rng: random.Random, errs: bool) -> str:
        """Returns what somebody who may err takes for the value."""
        chance = self.config.myth if (animal, attribute) in self.myths else self.config.slip
        if errs and rng.random() < chance:
            return self.knowledge.false_value(animal, attribute, rng)
        return self.knowledge.facts[animal, attribute]


def _commuted(equation: str) -> tuple[str, ...]:
    left, operation, right, _, result = equation.split(" ")
    if operation == "-" or left == right:
        return (equation,)
    return equation, f"{right} {operation} {left} = {result}"


def _tell(attribute: str, animal: str, value: str) -> tuple[str, ...]:
    return tuple(line.replace("{E}", animal).replace("{V}", value) for line in _WORDS["tell"][attribute])


def _answered(
    question: str,
    choices: Sequence[str],
    right: str,
    told: str,
    steps: Sequence[tuple[str, ...]],
    lines: Sequence[str],
) -> DrawnQuestion:
    final = [(_WORDS["answer"].replace("{v}", right),)]
    spoken = (*lines, _WORDS["answer"].replace("{v}", told))
    return DrawnQuestion(question, tuple(choices), right, (*steps, *final), spoken, told == right)
