"""Settings of sampled solutions: how they are drawn, who corrects them, and how rewrites are imitated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlhf_core.data.templates import chat_template
from rlhf_core.data.truncation import Limits
from rlhf_core.models.sampling import Sampling
from rlhf_core.reasoning.rewriting import RewriteLimits
from rlhf_core.teachers.oracle import OracleTeacher
from rlhf_core.typed import Checked, accepted_by, one_of, typed
from tasks.params.evaluation import check_endpoint
from tasks.params.settings import Count


@dataclass(frozen=True)
class SamplesSpec(Checked):
    """How solutions are drawn.

    Args:
        sampling: of the solutions.
        samples: of every question.
        batch: solutions drawn at a time.
    """

    sampling: Sampling
    samples: Count = 5
    batch: Count = 256


@dataclass(frozen=True)
class LocalTeacherSettings(Checked):
    """A teacher that is a local model.

    Args:
        source: folder or hub id.
        template: chat template.
        limits: in tokens.
        cache_path: file of answers.
        max_new_tokens: longest answer.
        batch: prompts answered at a time.
    """

    source: str
    template: Annotated[str, accepted_by(chat_template)]
    limits: Limits
    cache_path: str | None = None
    max_new_tokens: Count = 256
    batch: Count = 16


def _check_endpoint_teacher(options: Mapping[str, Any]) -> None:
    """Refuses options that an endpoint teacher does not take; its cache has a place of its own."""
    check_endpoint({"cache_path": "answers.jsonl", **options})


#: What checks the options of each kind of teacher.
TEACHERS = {
    "oracle": lambda options: typed(OracleTeacher, options, "oracle"),
    "endpoint": _check_endpoint_teacher,
    "local": lambda options: typed(LocalTeacherSettings, options, "local"),
}


@dataclass(frozen=True)
class TeacherSpec(Checked):
    """Who corrects, and what is accepted.

    Args:
        kind: 'oracle' (options `noise`, `seed`), 'endpoint' (fields of `EndpointConfig`) or 'local' (those of
            `LocalTeacherSettings`).
        options: of the kind.
        limits: what is accepted as a rewrite.
    """

    kind: Annotated[str, one_of(tuple(TEACHERS))]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: RewriteLimits = field(default_factory=RewriteLimits)

    def __post_init__(self) -> None:
        super().__post_init__()
        TEACHERS[self.kind](self.options)
