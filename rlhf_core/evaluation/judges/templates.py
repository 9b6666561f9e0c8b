"""Requests to judges, and the named prompts that put them to a language model (`templates.yaml`).

The instructions are this project's wording, except `pairwise`, `ranking` and `output_pair`, which are the printed
prompts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Protocol, runtime_checkable

import yaml

from rlhf_core.evaluation.judges.replies import READERS, Verdict


@dataclass(frozen=True)
class JudgeRequest:
    """One question to a judge.

    Attributes:
        id: unique within one call.
        prompt: the user's prompt.
        answers: in the order shown: one for `mt_bench`, two for the pairwise templates.
        template: name of the template.
        meta: prompt meta data for judges that know the world; an LLM judge sees `reference`, `references` and `first`.
    """

    id: str
    prompt: str
    answers: tuple[str, ...]
    template: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Judge(Protocol):
    """Answers requests with the text of a verdict, the empty text where it could not answer."""

    name: str

    def answer(self, requests: Sequence[JudgeRequest]) -> list[str]:
        """Returns the raw verdict text of each request, in order."""
        ...


@dataclass(frozen=True)
class JudgePrompt:
    """The prompt of one way of judging, with the parser of its answers.

    Attributes:
        name: how requests name it.
        n_answers: how many answers a request carries.
        system, user: the messages; `templates.yaml` explains the fields of `user`.
        max_tokens: length of the verdict asked for.
        parse: reads the verdict in a reply; those of teachers are read in `rlhf_core.reasoning`.
        temperature: sampling temperature of the protocol.
        label_tokens: tokens whose log-probabilities make a soft verdict, `(first, second)`, or None.
        marks: texts of the user message that separate its parts.
    """

    name: str
    n_answers: int
    system: str
    user: str
    max_tokens: int
    parse: Callable[[str], Verdict]
    temperature: float = 0.0
    label_tokens: tuple[str, str] | None = None
    marks: tuple[str, ...] = ()


def _templates() -> dict[str, JudgePrompt]:
    text = files("rlhf_core.evaluation.judges").joinpath("templates.yaml").read_text(encoding="utf-8")
    written: dict[str, dict[str, Any]] = yaml.load(text, yaml.CSafeLoader)
    for name, one in written.items():
        one |= {key: tuple(one[key]) for key in ("marks", "label_tokens") if key in one}
        one |= {"name": name, "parse": READERS.get(name, lambda _reply: None)}
    return {name: JudgePrompt(**one) for name, one in written.items()}


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
