"""The teachers that correct wrong solutions, by the `kind` of a file: oracle, endpoint, local."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.data.encoding import Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.evaluation.judges.openai_endpoint import EndpointConfig
from rlhf_core.testbed.oracle import OracleTeacher
from rlhf_core.typed import Checked, accepted_by, at_least

if TYPE_CHECKING:
    from rlhf_core.data.encoding import Encoder
    from rlhf_core.models.policy import Policy
    from rlhf_core.reasoning.rewriting import Teacher

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
        from rlhf_core.teachers.language_models import EndpointTeacher

        return EndpointTeacher(self)


@dataclass(frozen=True)
class Local(Checked):
    """A language model on this machine.

    Args:
        source: a folder or hub id.
        template: of its prompts.
        limits: of its prompts and answers.
        max_new_tokens: longest answer.
        batch: prompts per forward pass.
        cache_path: file of answers.
    """

    source: str
    template: Annotated[str, accepted_by(chat_template)]
    limits: Limits
    max_new_tokens: Annotated[int, at_least(1)] = 256
    batch: Annotated[int, at_least(1)] = 16
    cache_path: str | Path = ".work/teacher/local.jsonl"
    needs_testbed: ClassVar[bool] = False

    def teacher(self, load: LoadPolicy) -> Teacher:
        from rlhf_core.data.encoding import Encoder
        from rlhf_core.models.loading import load_tokenizer
        from rlhf_core.teachers.language_models import LocalTeacher

        encoder = Encoder(load_tokenizer(self.source), chat_template(self.template), self.limits)
        policy = load(Path(self.source), encoder)
        return LocalTeacher(policy, encoder, self.source, Path(self.cache_path), self.max_new_tokens, self.batch)


#: Settings of each kind of teacher, with `teacher(load)`, and whether it knows the testbed alone (`needs_testbed`).
TEACHERS: Choices[type[Any]] = Choices(
    "teacher kind",
    {"oracle": Oracle, "endpoint": TeacherEndpoint, "local": Local},
    needs=("teacher", "needs_testbed"),
    dataclasses=True,
)
