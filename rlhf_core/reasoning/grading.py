"""Grading of sampled solutions: their answers are extracted and compared with the question's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.evaluation.answers import extract_number, parse_number, told_answer
from rlhf_core.evaluation.mathematics import equal_expressions

#: The letter of a choice, in parentheses or not, alone or before its text.
_LETTER = re.compile(r"\(?([A-Z])\)?[.:]?(?:\s+(.+))?")
_IN_LATEX = re.compile(r"[\\{^]")


def question_prompt(question: str, choices: Sequence[str] | None = None) -> str:
    """Returns the question as a policy is asked; its choices follow as `(A) one (B) two`."""
    if not choices:
        return question
    return f"{question}\n" + " ".join(f"({chr(ord('A') + i)}) {choice}" for i, choice in enumerate(choices))


def with_answer(solution: str | None, answer: str) -> str:
    """Returns a solution that ends with `The answer is ...`, as policies are taught to end; of no steps, that line
    alone."""
    steps = (solution or "").strip()
    if re.search("####|the answer is", steps, re.IGNORECASE):
        return steps
    return f"{steps}\nThe answer is {answer}".strip()


def extract_answer(prediction: str, question: Mapping[str, Any]) -> str | None:
    """Returns the answer that a prediction reaches, None where none can be read.

    Of a multiple choice it is told by the choice's letter, its text or both. In mathematics it is the number that
    `extract_number` reads, or the expression that is told where that or the gold answer is in LaTeX or not a number.

    Args:
        prediction: a solution.
        question: `answer`; with `choices` the answer is the text of one of them.
    """
    told, gold = told_answer(prediction), str(question["answer"])
    if question.get("choices"):
        return None if told is None else _chosen(told, question["choices"])
    if parse_number(gold) is None or (told is not None and _IN_LATEX.search(told)):
        return told
    return extract_number(prediction)


def _chosen(told: str, choices: Sequence[str]) -> str | None:
    told = told.strip(" *`$\"'").removesuffix(".")
    texts = [str(choice).strip().removesuffix(".").casefold() for choice in choices]
    if told.casefold() in texts:
        return str(choices[texts.index(told.casefold())])
    letter = _LETTER.fullmatch(told)
    place = -1 if letter is None else ord(letter[1]) - ord("A")
    if letter is None or place >= len(choices) or (letter[2] or texts[place]).casefold() != texts[place]:
        return None
    return str(choices[place])


def is_right(extracted: str | None, question: Mapping[str, Any]) -> bool:
    """Returns whether an extracted answer is the question's: the same choice, number or expression."""
    gold = str(question["answer"])
    if extracted is None or question.get("choices"):
        return extracted == gold
    found, target = parse_number(extracted), parse_number(gold)
    if found is not None and target is not None:
        return found == target
    return equal_expressions(extracted, gold)
