"""Named prompts of judges: a text form for a language model (`templates.yaml`) and the reader of its verdict.

The instructions are this project's wording, except `pairwise`, `ranking` and `output_pair`, which are the printed
prompts; pass `system=` text of your own through `dataclasses.replace` to compare with numbers judged under another
prompt.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import yaml

from rlhf_core.evaluation.judges.protocol import JudgeRequest, Verdict
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
        parse: reads the verdict in a reply.
        max_tokens: length of the verdict asked for.
        temperature: sampling temperature of the protocol.
        label_tokens: tokens whose log-probabilities make a soft verdict, `(first, second)`, or None.
        marks: texts of the user message that separate its parts.
    """

    name: str
    n_answers: int
    system: str
    user: str
    parse: Callable[[str], Verdict]
    max_tokens: int
    temperature: float = 0.0
    label_tokens: tuple[str, str] | None = None
    marks: tuple[str, ...] = ()


def _read_elsewhere(text: str) -> Verdict:
    """Returns no verdict: `rlhf_core.reasoning` reads the answers of teachers."""
    return None


_PARSERS: dict[str, Callable[[str], Verdict]] = {
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


def render(request: JudgeRequest) -> tuple[str, str]:
    """Returns the system and user message of a request for a language model.

    The template's own marks inside a prompt, an answer or a reference get a space after their first character: an
    answer cannot end itself and begin the next.
    """
    template = TEMPLATES[request.template]
    marks = re.compile("|".join(map(re.escape, template.marks)), re.IGNORECASE) if template.marks else None

    def shown(text: Any) -> Any:
        if isinstance(text, list | tuple):
            return [shown(part) for part in text]
        while marks is not None and isinstance(text, str) and marks.search(text):
            text = marks.sub(lambda match: f"{match[0][0]} {match[0][1:]}", text)
        return text

    reference = shown(request.meta.get("reference"))
    known = f"<|Reference answer|>\n{reference}\n\n" if isinstance(reference, str) and reference else ""
    more = {name: shown(request.meta.get(name)) for name in ("first", "references")}
    user = template.user.format(prompt=shown(request.prompt), answers=shown(request.answers), known=known, **more)
    return template.system, user
