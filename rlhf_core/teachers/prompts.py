"""A teacher's prompts with annotated exemplars before the question. Source: RLMEC, section 4.1 and Table 5."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.reasoning.steps import CORRECT
from rlhf_core.reasoning.templates import TEACHER

#: Kinds of request: the first wrong step, and the rewritten solution.
LOCATE, REWRITE = "locate_error", "rewrite_solution"
_DIVIDER = "\n\n"


@cache
def exemplars(task: str) -> list[Mapping[str, Any]]:
    """Returns the annotated exemplars of a task {problem, solution, prediction, step, rewrite}.

    A correct prediction has neither step nor rewrite.

    Raises:
        RecipeError: an unknown task.
    """
    known = yaml.safe_load(files("rlhf_core.teachers").joinpath("exemplars.yaml").read_text(encoding="utf-8"))
    if task not in known:
        raise RecipeError(f"no exemplars of the task '{task}'; known: {', '.join(known)}")
    return list(known[task])


def teacher_prompt(kind: str, wrong: WrongSolution) -> str:
    """Returns the prompt of a teacher: solved exemplars, then the question in the same form.

    Args:
        kind: `LOCATE` or `REWRITE`.
        wrong: the prediction; its task selects the exemplars.
    """
    fill = TEACHER.locating if kind == LOCATE else TEACHER.rewriting
    task = "multiple_choice" if wrong.question.get("choices") else "mathematics"
    shown = [
        fill(item["problem"], item["solution"], item["prediction"]) + answer
        for item in exemplars(task)
        if (answer := _answer(kind, item)) is not None
    ]
    asked = fill(wrong.question["prompt"], wrong.question["solution"], wrong.prediction)
    return _DIVIDER.join([*shown, asked])


def _answer(kind: str, item: Mapping[str, Any]) -> str | None:
    """Returns the answer to an exemplar's prediction; None if the prediction is correct but was to be rewritten."""
    if kind == REWRITE:
        return item.get("rewrite")
    return f"[{item['step']}]" if "step" in item else CORRECT
