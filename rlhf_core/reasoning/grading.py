"""Grading of sampled solutions: their answers are extracted and compared with the question's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.evaluation.answers import answers_equal, extract_boxed, extract_number, parse_number, told_box
from rlhf_core.evaluation.choice_answers import extract_choice
from rlhf_core.evaluation.denials import answer_told, last_is_doubted

_ANSWER_IS = re.compile(r"(?:####|the answer is)[: ]*", re.IGNORECASE)


def question_prompt(question: str, choices: Sequence[str] | None = None) -> str:
    """Returns the question as a policy is asked; its choices follow as `(A) one (B) two`."""
    if not choices:
        return question
    return f"{question}\n" + " ".join(f"({chr(ord('A') + i)}) {choice}" for i, choice in enumerate(choices))


def with_answer(solution: str | None, answer: str) -> str:
    """Returns a solution that ends with `The answer is ...`, as policies are taught to end; of no steps, that line
    alone."""
    steps = (solution or "").strip()
    if _ANSWER_IS.search(steps):
        return steps
    return f"{steps}\nThe answer is {answer}".strip()


def _told(text: str) -> str | None:
    """Returns what is told as the answer: behind the last `The answer is` a box, else the line without its full stop.

    A box elsewhere counts only where nothing says `The answer is`.
    """
    triggers = list(_ANSWER_IS.finditer(text))
    if not triggers:
        return None if answer_told(text)[0] is None else told_box(text)
    if last_is_doubted(text) or answer_told(text)[0] is None:
        return None
    told = text[triggers[-1].end() :]
    boxed = extract_boxed(told)
    if boxed is not None:
        return boxed
    return told.split("\n")[0].strip().removesuffix(".").strip() or None


def extract_answer(prediction: str, question: Mapping[str, Any]) -> str | None:
    """Returns the answer that a prediction reaches, None where none can be read.

    Args:
        prediction: a solution.
        question: `answer`; with `choices` the answer is the text of one of them, otherwise a number (a fraction in
            LaTeX is one), or an expression where the gold answer is not a number.
    """
    choices = question.get("choices")
    if choices:
        told = _told(prediction)
        for choice in choices:
            if told is not None and told.casefold() == str(choice).strip().removesuffix(".").casefold():
                return str(choice)
        index = extract_choice(prediction, len(choices), choices)
        return None if index is None else str(choices[index])
    told = _told(prediction)
    if parse_number(str(question["answer"])) is None or (told is not None and parse_number(told) is not None):
        return told
    return extract_number(prediction)


def is_right(extracted: str | None, question: Mapping[str, Any]) -> bool:
    """Returns whether an extracted answer is the question's."""
    if question.get("choices"):
        return extracted == question["answer"]
    return answers_equal(extracted, str(question["answer"]))
