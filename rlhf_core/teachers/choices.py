"""The teachers that correct wrong solutions, by the `kind` of a file: the testbed's oracle, or an endpoint's model.

A model's prompts have annotated exemplars before the question. Source: RLMEC, section 4.1 and Table 5.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import yaml

from rlhf_core.choices import Choices
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig, EndpointJudge
from rlhf_core.evaluation.judges.templates import JudgeRequest
from rlhf_core.reasoning.rewriting import Correction, Teacher, WrongSolution
from rlhf_core.reasoning.steps import CORRECT
from rlhf_core.reasoning.templates import REWRITTEN, TEACHER
from rlhf_core.testbed.oracle import OracleTeacher

if TYPE_CHECKING:
    from rlhf_core.data.encoding import Encoder
    from rlhf_core.models.policy import Policy

#: Kinds of request: the first wrong step, and the rewritten solution.
LOCATE, REWRITE = "locate_error", "rewrite_solution"


@cache
def exemplars(task: str) -> list[Mapping[str, Any]]:
    """Returns the annotated exemplars of a task {problem, solution, prediction, step, rewrite}.

    A correct prediction has neither step nor rewrite.
    """
    known = yaml.safe_load(files("rlhf_core.teachers").joinpath("exemplars.yaml").read_text(encoding="utf-8"))
    return list(known[task])


def teacher_prompt(kind: str, wrong: WrongSolution) -> str:
    """Returns the prompt of a teacher of a kind (`LOCATE`, `REWRITE`): solved exemplars of the task, then the question
    in the same form."""
    fill = TEACHER.locating if kind == LOCATE else TEACHER.rewriting
    task = "multiple_choice" if wrong.question.get("choices") else "mathematics"
    shown = [
        fill(item["problem"], item["solution"], item["prediction"]) + answer
        for item in exemplars(task)
        if (answer := _answer(kind, item)) is not None
    ]
    asked = fill(wrong.question["prompt"], wrong.question["solution"], wrong.prediction)
    return "\n\n".join([*shown, asked])


def _answer(kind: str, item: Mapping[str, Any]) -> str | None:
    """Returns the answer to an exemplar's prediction; None if the prediction is correct but was to be rewritten."""
    if kind == REWRITE:
        return item.get("rewrite")
    return f"[{item['step']}]" if "step" in item else CORRECT


class EndpointTeacher:
    """Asks an endpoint both questions of every prediction; cached, resumable and paid for as judges are."""

    def __init__(self, config: EndpointConfig) -> None:
        self.client, self.name = EndpointJudge(config), config.model

    def correct(self, wrong: Sequence[WrongSolution]) -> list[Correction]:
        """Returns one correction for each.

        Raises:
            JudgeError: a wrong address, key or model, or a call that failed for good; what was answered is cached.
        """
        requests = [
            JudgeRequest(f"{each.id}/{kind}", teacher_prompt(kind, each), (), kind)
            for each in wrong
            for kind in (LOCATE, REWRITE)
        ]
        texts = self.client.answer(requests)
        pairs = zip(texts[::2], texts[1::2], strict=True)
        return [Correction(located, rewrite.strip().removeprefix(REWRITTEN).strip()) for located, rewrite in pairs]

    def costs(self) -> dict[str, float]:
        return {name: float(value) for name, value in asdict(self.client.usage).items()}


#: (folder or hub id, encoder) -> a policy on the device that it is to run on
LoadPolicy = Callable[[Path, "Encoder"], "Policy"]


@dataclass(frozen=True)
class Oracle(OracleTeacher):
    """The testbed's teacher, which knows the right steps."""

    needs_testbed: ClassVar[bool] = True

    def teacher(self, load: LoadPolicy) -> Teacher:
        return self


@dataclass(frozen=True)
class TeacherEndpoint(EndpointConfig):
    """A language model behind an OpenAI-compatible endpoint."""

    cache_path: str | Path | None = field(default=".work/teacher/endpoint.jsonl", kw_only=True)
    needs_testbed: ClassVar[bool] = False

    def teacher(self, load: LoadPolicy) -> Teacher:
        return EndpointTeacher(self)


#: Settings of each kind of teacher, with `teacher(load)`, and whether it knows the testbed alone (`needs_testbed`).
TEACHERS: Choices[type[Any]] = Choices(
    "teacher kind",
    {"oracle": Oracle, "endpoint": TeacherEndpoint},
    needs=("teacher", "needs_testbed"),
    dataclasses=True,
)
