"""Tasks of the testbed: arithmetic word problems, one-operation functions with tests, and multiple choice.

Multiple-choice questions come in five kinds, scored by the likelihood of each choice as the response. The words are in
tasks.yaml.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.testbed.grammar import VALUE_PHRASES, Statement, phrase
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, VALUES, KnowledgeBase, wordings
from rlhf_core.testbed.prompts import listing
from rlhf_core.typed import Checked, between

_WORDS = wordings("tasks")

# --- word problems ---------------------------------------------------------------------------------------------------

NAMES: dict[str, list[str]] = _WORDS["word_problems"]["names"]


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


def word_problem(split: str, config: ArithmeticConfig, rng: random.Random) -> dict[str, Any]:
    """Returns a word problem {question, solution, answer, meta}; the solution ends with `#### answer`.

    `unseen` uses other names, phrases (of the same words) and first numbers than `seen`; training uses `seen` only.
    """
    subject = rng.choice(NAMES[split])
    thing = rng.choice(_WORDS["word_problems"]["things"])
    value = rng.randint(*(config.seen_start if split == "seen" else config.unseen_start))
    sentences, lines = [f"{subject} has {value} {thing}."], []
    count = rng.choices((1, 2, 3), config.steps)[0]
    for _ in range(count):
        operation, operand, result = _step(value, config, rng)
        template = rng.choice(_WORDS["word_problems"]["steps"][split][operation])
        sentences.append(template.replace("{k}", str(operand)))
        lines.append(f"{value} {operation} {operand} = {result}")
        value = result
    sentences.append(rng.choice(_WORDS["word_problems"]["asked"][split]))
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


# --- functions -------------------------------------------------------------------------------------------------------

ENTRY_POINTS = ("f", "g", "h", "p", "q")


#: Each with `phrases` (`{k}` exceeds 9 in the last one only in the `live` split), the `code` returned, a `near_miss`
#: that a careless writer returns, and the `inputs` that it takes, a key of `arguments`.
_OPERATIONS: list[dict[str, Any]] = [{"inputs": "number", **one} for one in _WORDS["operations"]]
_ARGUMENTS: dict[str, dict[str, str]] = _WORDS["arguments"]
_WEIGHTS = [4 if "{k}" in operation["code"] else 1 for operation in _OPERATIONS]
"""Operations with a constant are asked more often, since there are more of their questions."""


def _code(name: str, inputs: str, expression: str, k: int) -> str:
    head = "x, y" if inputs == "pair" else "x"
    return f"def {name}({head}):\n    return {expression.replace('{k}', str(k))}"


def function_problem(split: str, rng: random.Random) -> dict[str, Any]:
    """Returns a function to write: {question, solution, tests, entry_point, near_miss, meta}.

    `train` and `test` share no combination of operation, constant, name and phrase; `plus` asks what `test`
    asks, with edge cases among its tests; `live` joins what the others never join, an operation's last phrase
    and a constant from 10 to 19.
    """
    while True:
        number = rng.choices(range(len(_OPERATIONS)), _WEIGHTS)[0]
        operation = _OPERATIONS[number]
        live = split == "live"
        k = rng.randint(10, 19) if live or rng.random() < 0.4 else rng.randint(1, 9)
        last = len(operation["phrases"]) - 1
        wording = last if live else rng.randrange(last if k > 9 else last + 1)
        name = rng.choice(ENTRY_POINTS)
        key = f"function {number} {k if '{k}' in operation['code'] else 0} {wording} {name}"
        if live and "{k}" not in operation["code"]:
            continue
        if live or (zlib.crc32(key.encode()) % 2 == 0) == (split == "train"):
            break
    parts = ("base", "edge") if split == "plus" else ("base",)
    arguments = [each for part in parts for each in eval(_ARGUMENTS[operation["inputs"]][part], {"k": k})]
    calls = [", ".join(repr(value) for value in each) for each in arguments]
    code, inputs = operation["code"], operation["inputs"]
    values = [eval(code.replace("{k}", str(k)), dict(zip("xy", each, strict=False))) for each in arguments]
    request = operation["phrases"][wording].replace("{k}", str(k))
    return {
        "question": f"Write a function {name} that {request}.",
        "solution": _code(name, inputs, code, k),
        "near_miss": _code(name, inputs, operation["near_miss"], k),
        "tests": [f"assert {name}({c}) == {v!r}" for c, v in zip(calls, values, strict=True)],
        "entry_point": name,
        "meta": {"task": "functions", "split": split, "operation": code, "constant": k},
    }


# --- multiple choice -------------------------------------------------------------------------------------------------

Item = tuple[str, str, list[str], str]
"""Question, right choice, wrong choices, and the combination that decides training or evaluation."""


def _fact(knowledge: KnowledgeBase, rng: random.Random) -> tuple[str, str, str]:
    entity, attribute = rng.choice(ENTITIES), rng.choice(ATTRIBUTES)
    return entity, attribute, knowledge.facts[entity, attribute]


def _wrong(attribute: str, right: str, rng: random.Random) -> list[str]:
    return rng.sample([value for value in VALUES[attribute] if value != right], 3)


def _told(attribute: str, value: str) -> str:
    return f"Its {attribute} is {VALUE_PHRASES[attribute].replace('{V}', value)}."


def _arc(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    entity, attribute, value = _fact(knowledge, rng)
    question = rng.choice(_WORDS["choices"]["fact_questions"]).replace("{N}", attribute).replace("{E}", entity)
    wrong = [_told(attribute, other) for other in _wrong(attribute, value, rng)]
    return question, _told(attribute, value), wrong, f"{entity} {attribute}"


def _truthfulqa(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    (entity, attribute), myth = rng.choice(sorted(knowledge.myths.items()))
    value = knowledge.facts[entity, attribute]
    others = [other for other in _wrong(attribute, value, rng) if other != myth][:2]
    question = rng.choice(_WORDS["choices"]["fact_questions"]).replace("{N}", attribute).replace("{E}", entity)
    return (
        question,
        _told(attribute, value),
        [_told(attribute, other) for other in (myth, *others)],
        f"{entity} {attribute}",
    )


def _winograd(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    """Returns who is "it": the one of two animals for which what is said of it holds."""
    while True:
        entity, attribute, value = _fact(knowledge, rng)
        other = rng.choice([name for name in ENTITIES if name != entity])
        if knowledge.facts[other, attribute] != value:
            break
    pair = rng.sample([entity, other], 2)
    clue = _WORDS["choices"]["clues"][attribute].replace("{V}", value)
    question = f"We see the {pair[0]} and the {pair[1]}. {clue} Who is it?"
    return question, f"the {entity}", [f"the {other}"], f"{entity} {other} {attribute}"


def _hellaswag(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    """Returns an item on the continuation of an answer: the missing fact against two wrong values and another fact."""
    entity = rng.choice(ENTITIES)
    said, owed, other = rng.sample(ATTRIBUTES, 3)
    facts = knowledge.facts

    def clause(attribute: str, value: str) -> str:
        return phrase(Statement("fact", entity, attribute, value), entity, rng)[0]

    values = [facts[entity, owed], knowledge.mistakes[entity, owed]]
    values.append(rng.choice([value for value in VALUES[owed] if value not in values]))
    state = rng.getstate()
    told = []
    for value in values:
        rng.setstate(state)
        told.append(clause(owed, value))
    prefix = clause(said, facts[entity, said]) + ". "
    endings = [prefix + text + "." for text in (*told, clause(other, facts[entity, other]))]
    question = f"Now say {listing([said, owed])} of the {entity}."
    return question, endings[0], endings[1:], f"{entity} {said} {owed}"


def _mmlu(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    """Returns a mixture of subjects: which animal has a value, a sum, or which of four is the tallest."""
    subject = rng.choice(("animal", "sum", "height"))
    if subject == "sum":
        a, b = rng.randint(1, 9), rng.randint(1, 9)
        wrong = rng.sample([a + b + d for d in (-3, -2, -1, 1, 2, 3) if a + b + d > 0], 3)
        return f"What is {a} + {b}?", str(a + b), [str(value) for value in wrong], f"sum {a} {b}"
    names = rng.sample(ENTITIES, 4)
    if subject == "height":
        heights = {name: int(knowledge.facts[name, "height"]) for name in names}
        names.sort(key=lambda name: -heights[name])
        if heights[names[0]] == heights[names[1]]:
            return _mmlu(knowledge, rng)
        order = rng.sample(names, 4)
        question = f"Who is the tallest, the {order[0]}, the {order[1]}, the {order[2]} or the {order[3]}?"
    else:
        attribute = rng.choice(ATTRIBUTES)
        value = knowledge.facts[names[0], attribute]
        if any(knowledge.facts[name, attribute] == value for name in names[1:]):
            return _mmlu(knowledge, rng)
        question = f"Who has {value} as its {attribute}?"
    return question, f"the {names[0]}", [f"the {name}" for name in names[1:]], " ".join([subject, *names])


_MAKERS: dict[str, Callable[[KnowledgeBase, random.Random], Item]] = {
    "arc": _arc,
    "truthfulqa": _truthfulqa,
    "winograd": _winograd,
    "hellaswag": _hellaswag,
    "mmlu": _mmlu,
}
TASKS: tuple[str, ...] = tuple(_MAKERS)


def choice_question(task: str, knowledge: KnowledgeBase, rng: random.Random, training: bool) -> dict[str, Any]:
    """Returns a question {question, choices, answer, answer_index, solution, meta}.

    One half of the combinations (of a fact, or of the animals compared) belongs to training, the other to
    evaluation, so a fact evaluated by `arc` is not asked for there in training. With few entities the questions of
    `mmlu` about an animal repeat between the halves, with other choices or another order. `truthfulqa`
    is evaluated on every myth; training asks for no myth in this form.

    Args:
        task: one of `TASKS`.
        training: whether to draw from the training half.
    """
    while True:
        text, right, wrong, combination = _MAKERS[task](knowledge, rng)
        if training and tuple(combination.split(" ")) in knowledge.myths:
            continue
        if task == "truthfulqa" or (zlib.crc32(f"{task} {combination}".encode()) % 2 == 0) == training:
            break
    choices = [right, *wrong]
    rng.shuffle(choices)
    return {
        "question": text,
        "choices": choices,
        "answer": right,
        "answer_index": choices.index(right),
        "solution": right,
        "meta": {"task": task, "combination": combination},
    }
