"""Named prompts of judges: a text form for a language model (`templates.yaml`) and the reader of its verdict.

The instructions are this project's wording, except `pairwise`, `ranking` and `output_pair`, which are the printed
prompts; pass `system=` text of your own through `dataclasses.replace` to compare with numbers judged under another
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.judges.protocol import JudgeAnswer, JudgeRequest
from rlhf_core.evaluation.judges.replies import (
    parse_alpaca_eval,
    parse_arena_hard,
    parse_mt_bench,
    parse_output_pair,
    parse_pairwise,
    parse_ranking,
)


@dataclass(frozen=True)
class JudgePrompt:
    """The prompt of one way of judging, with the parser of its answers.

    Attributes:
        name: how requests name it.
        n_answers: how many answers a request carries.
        system: the system message for a language model.
        user: the user message, with the fields that `templates.yaml` explains.
        parse: raw verdict text -> JudgeAnswer, strict.
        max_tokens: length of the verdict asked for.
        temperature: sampling temperature of the protocol.
        label_tokens: tokens whose log-probabilities make a soft verdict, `(first, second)`, or None.
        marks: texts of the user message that separate its parts.
    """

    name: str
    n_answers: int
    system: str
    user: str
    parse: Callable[[str], JudgeAnswer]
    max_tokens: int
    temperature: float = 0.0
    label_tokens: tuple[str, str] | None = None
    marks: tuple[str, ...] = ()

    def message(self, request: JudgeRequest) -> str:
        """Returns the user message of a request."""
        reference = request.meta.get("reference")
        known = f"<|Reference answer|>\n{reference}\n\n" if isinstance(reference, str) and reference else ""
        more = {name: request.meta.get(name) for name in ("first", "references")}
        return self.user.format(prompt=request.prompt, answers=request.answers, known=known, **more)


def _read_elsewhere(text: str) -> JudgeAnswer:
    """Returns a teacher's answer as valid unless it is empty; `rlhf_core.reasoning` reads its content."""
    return JudgeAnswer(valid=bool(text.strip()), reason="" if text.strip() else "no answer")


_PARSERS: dict[str, Callable[[str], JudgeAnswer]] = {
    "alpaca_eval": parse_alpaca_eval,
    "arena_hard": parse_arena_hard,
    "mt_bench": parse_mt_bench,
    "mt_bench_turns": parse_mt_bench,
    "mt_bench_reference": parse_mt_bench,
    "mt_bench_reference_turns": parse_mt_bench,
    "ranking": parse_ranking,
    "output_pair": parse_output_pair,
    "pairwise": parse_pairwise,
    "locate_error": _read_elsewhere,
    "rewrite_solution": _read_elsewhere,
}


def _templates() -> dict[str, JudgePrompt]:
    text = files("rlhf_core.evaluation.judges").joinpath("templates.yaml").read_text(encoding="utf-8")
    written: dict[str, dict[str, Any]] = yaml.load(text, yaml.CSafeLoader)
    for one in written.values():
        one |= {key: tuple(one[key]) for key in ("marks", "label_tokens") if key in one}
    return {name: JudgePrompt(name=name, parse=_PARSERS[name], **one) for name, one in written.items()}


TEMPLATES = _templates()


def get_template(name: str) -> JudgePrompt:
    """Returns the template of that name; RecipeError names the known ones otherwise."""
    if name not in TEMPLATES:
        raise RecipeError(f"unknown judge template '{name}'; known: {', '.join(sorted(TEMPLATES))}")
    return TEMPLATES[name]


def render(request: JudgeRequest) -> tuple[str, str]:
    """Returns the system and user message of a request for a language model.

    The template's own marks inside a prompt, an answer or a reference get a space after their first character: an
    answer cannot end itself and begin the next.

    Raises:
        RecipeError: unknown template, or a number of answers that the template does not take.
    """
    template = get_template(request.template)
    if len(request.answers) != template.n_answers:
        raise RecipeError(
            f"template '{template.name}' takes {template.n_answers} answer(s), "
            f"request '{request.id}' has {len(request.answers)}"
        )
    if not template.marks:
        return template.system, template.message(request)
    marks = re.compile("|".join(map(re.escape, template.marks)), re.IGNORECASE)
    meta = {name: _without_marks(request.meta[name], marks) for name in _SHOWN_META if name in request.meta}
    shown = replace(
        request,
        prompt=_without_marks(request.prompt, marks),
        answers=tuple(_without_marks(answer, marks) for answer in request.answers),
        meta={**request.meta, **meta},
    )
    return template.system, template.message(shown)


#: Entries of a request's meta data that a judge is shown.
_SHOWN_META = ("reference", "references", "first")


def _without_marks(text: Any, marks: re.Pattern[str]) -> Any:
    if isinstance(text, list | tuple):
        return [_without_marks(part, marks) for part in text]
    if not isinstance(text, str):
        return text
    while marks.search(text):
        text = marks.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
    return text
