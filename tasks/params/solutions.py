"""Settings of sampled solutions: how they are drawn, who corrects them, and how rewrites are imitated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.reasoning.rewriting import RewriteLimits
from rlhf_core.teachers.choices import TEACHERS
from rlhf_core.typed import Checked, one_of
from tasks.params.settings import Count, Size, check_stated


@dataclass(frozen=True)
class SamplesSpec(Checked):
    """Settings for drawing solutions.

    Args:
        sampling: of the solutions.
        samples: of every question.
        batch: solutions drawn at a time.
        gold: solutions of every question that are its own instead, marked as gold; for rehearsals, whose random models
            find no right one.
    """

    sampling: Sampling
    samples: Count = 5
    batch: Count = 256
    gold: Size = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gold >= self.samples:
            raise RecipeError(f"gold is {self.gold}; it must be less than samples, {self.samples}")
        self.sampling.refuse_copies(self.samples, "samples")


@dataclass(frozen=True)
class TeacherSpec(Checked):
    """Teacher of corrections, and the limits of accepted rewrites.

    Args:
        kind: one of `TEACHERS`.
        options: fields of the kind's class.
        limits: what is accepted as a rewrite.
    """

    kind: Annotated[str, one_of(TEACHERS)]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: RewriteLimits = field(default_factory=RewriteLimits)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_stated(TEACHERS[self.kind], self.options, "options.")
