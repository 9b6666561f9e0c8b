"""Settings of questions with step-by-step solutions, drawn or real, and of solutions that are sampled and corrected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self

from rlhf_core.data.encoding import Limits
from rlhf_core.data.templates import chat_template
from rlhf_core.errors import RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.reasoning.rewriting import RewriteLimits
from rlhf_core.teachers.choices import TEACHERS
from rlhf_core.testbed.reasoning import TESTS, Reasoning, ReasoningConfig
from rlhf_core.testbed.tasks import ArithmeticConfig
from rlhf_core.typed import Checked, Count, Seed, Size, accepted_by, between, check_given, one_of, typed
from tasks.params.parts import QUESTIONS, TESTBED_QUESTIONS, Need

#: Number of a world among many independent ones.
WorldNumber = Annotated[int, between(0, 2**40)]

#: Seeds of a data spec lie below this, so that no two worlds share one.
SEEDS_PER_WORLD = 1000


def seed_of_world(number: int, seed: int) -> int:
    """Returns the seed that a data spec's seed becomes in a world; in world 0 it stays.

    Raises:
        RecipeError: a number or a seed outside its range, whose seeds another world would have too.
    """
    if not 0 <= number <= 2**40:
        raise RecipeError(f"world is {number}; it must be from 0 to 2^40")
    if not 0 <= seed < SEEDS_PER_WORLD:
        raise RecipeError(
            f"seed is {seed}; it must be from 0 to {SEEDS_PER_WORLD - 1}, since world k has the seeds "
            f"{SEEDS_PER_WORLD} k + seed"
        )
    return SEEDS_PER_WORLD * number + seed


#: Splits of a test set: like the training questions, or not.
SPLITS = ("seen", "unseen")


@dataclass(frozen=True)
class QuestionRows(Checked):
    """Rows of each set: supervised examples, training questions, and items of each test set."""

    sft: Count
    sft_validation: Count
    questions: Count
    test: Count


@dataclass(frozen=True)
class DataSpec(Checked):
    """Settings that all data has: its source, chat template, and `Limits` in tokens."""

    source: str
    template: Annotated[str, accepted_by(chat_template)]
    limits: Mapping[str, Any]

    def _check_together(self) -> None:
        typed(Limits, self.limits, "limits")


@dataclass(frozen=True)
class QuestionsSpec(DataSpec):
    """Questions of the testbed, or of real sets in a folder; `source` is 'testbed' or 'directory'.

    Args:
        rows: sizes of the sets; of real data the most of each.
        world_seed, seed: of the testbed's facts and draws; `seed` is also of how real questions are split.
        difficulty: fields of `ReasoningConfig`, and `arithmetic` with those of `ArithmeticConfig`.
        train: real sets whose split `train` is learnt from.
        tests: {real set: seen or unseen}, whose split `test` is measured.
        columns: {real set: what it is called in tables}, where that differs.
        directory: folder of real sets; without one, the environment variable REWARDSMITH_DATA names it.
        max_bad_share: the largest tolerated share of bad rows of a file.
        world: number of a world of the testbed, whose seeds `of_world` makes of those given.
    """

    source: Annotated[str, one_of(("testbed", "directory"))]
    task: Annotated[str, one_of(tuple(TESTS))]
    rows: QuestionRows
    world_seed: Seed = 0
    seed: Seed = 0
    difficulty: Mapping[str, Any] = field(default_factory=dict)
    train: tuple[str, ...] = ()
    tests: Mapping[str, Annotated[str, one_of(SPLITS)]] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None
    max_bad_share: Annotated[float, between(0, 1, open_high=True)] = 0.1
    world: WorldNumber | None = None

    def _check_together(self) -> None:
        super()._check_together()
        if (self.source == "directory") != bool(self.train and self.tests):
            raise RecipeError(
                f"source '{self.source}': 'train' and 'tests' name the sets of a directory, and only of one"
            )
        for name in set(self.columns) - set(self.tests):
            raise RecipeError(f"columns: {name} is not one of the tests ({', '.join(self.tests)})")
        if self.source == "testbed":
            self.reasoning()
            if self.directory is not None:
                raise RecipeError(f"directory is '{self.directory}', but source 'testbed' reads none; leave it out")
            return
        if self.world is not None:
            raise RecipeError(f"world is {self.world}, and source '{self.source}'; only the testbed has worlds")
        if self.difficulty:
            raise RecipeError(f"difficulty is stated, but source '{self.source}' draws no questions; leave it out")

    @property
    def provides(self) -> tuple[str, ...]:
        """Returns what the data provides for stages."""
        return (QUESTIONS, TESTBED_QUESTIONS) if self.source == "testbed" else (QUESTIONS,)

    def of_world(self, number: int) -> Self:
        """Returns the spec of one of many worlds: facts and draws follow from the world's number."""
        world_seed, seed = (seed_of_world(number, each) for each in (self.world_seed, self.seed))
        return replace(self, world=None, world_seed=world_seed, seed=seed)

    def reasoning(self) -> Reasoning:
        """Returns the testbed's questions."""
        options = dict(self.difficulty)
        numbers = typed(ArithmeticConfig, options.pop("arithmetic", {}), "difficulty: arithmetic")
        return Reasoning(typed(ReasoningConfig, {**options, "arithmetic": numbers}, "difficulty"), self.world_seed)


@dataclass(frozen=True)
class SamplesSpec(Checked):
    """Settings for drawing solutions.

    Args:
        samples: of every question.
        gold: solutions of every question that are its own instead, marked as gold; for rehearsals, whose random models
            find no right one.
    """

    sampling: Sampling
    samples: Count = 5
    batch: Count = 256
    gold: Size = 0

    def _check_together(self) -> None:
        if self.gold >= self.samples:
            raise RecipeError(f"gold is {self.gold}; it must be less than samples, {self.samples}")
        self.sampling.refuse_copies(self.samples, "samples")

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(QUESTIONS, "samples", self.samples),)


@dataclass(frozen=True)
class TeacherSpec(Checked):
    """Teacher of corrections with the options of its kind, and the limits of accepted rewrites."""

    kind: Annotated[str, one_of(TEACHERS)]
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: RewriteLimits = field(default_factory=RewriteLimits)

    def _check_together(self) -> None:
        check_given(TEACHERS[self.kind], self.options, "options.", complete=True)

    @property
    def needs(self) -> tuple[Need, ...]:
        return (Need(TESTBED_QUESTIONS, "kind", self.kind),) if TEACHERS[self.kind].needs_testbed else ()
