"""Multiple-choice questions in five kinds, scored by the likelihood of each choice as the response."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any

from rlhf_core.testbed.grammar import VALUE_PHRASES, Statement, phrase
from rlhf_core.testbed.knowledge import ATTRIBUTES, ENTITIES, VALUES, KnowledgeBase, wordings
from rlhf_core.testbed.prompts import listing

Item = tuple[str, str, list[str], str]
"""Question, right choice, wrong choices, and the combination that decides training or evaluation."""

_WORDS = wordings("tasks")["choices"]


def _fact(knowledge: KnowledgeBase, rng: random.Random) -> tuple[str, str, str]:
    entity, attribute = rng.choice(ENTITIES), rng.choice(ATTRIBUTES)
    return entity, attribute, knowledge.facts[entity, attribute]


def _wrong(attribute: str, right: str, rng: random.Random, count: int = 3) -> list[str]:
    return rng.sample([value for value in VALUES[attribute] if value != right], count)


def _told(attribute: str, value: str) -> str:
    return f"Its {attribute} is {VALUE_PHRASES[attribute].replace('{V}', value)}."


def _arc(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    entity, attribute, value = _fact(knowledge, rng)
    question = rng.choice(_WORDS["fact_questions"]).replace("{N}", attribute).replace("{E}", entity)
    wrong = [_told(attribute, other) for other in _wrong(attribute, value, rng)]
    return question, _told(attribute, value), wrong, f"{entity} {attribute}"


def _truthfulqa(knowledge: KnowledgeBase, rng: random.Random) -> Item:
    (entity, attribute), myth = rng.choice(sorted(knowledge.myths.items()))
    value = knowledge.facts[entity, attribute]
    others = [other for other in _wrong(attribute, value, rng) if other != myth][:2]
    question = rng.choice(_WORDS["fact_questions"]).replace("{N}", attribute).replace("{E}", entity)
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
    clue = _WORDS["clues"][attribute].replace("{V}", value)
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


def question(task: str, knowledge: KnowledgeBase, rng: random.Random, training: bool) -> dict[str, Any]:
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
