"""Data of questions with step-by-step solutions, for the stage `prepare`: mathematics or multiple choice.

Writes sft.jsonl and sft.validation.jsonl (prompt, response), questions.jsonl (the training questions with their true
solutions), prompts.jsonl (the same as prompts), tests/<name>.jsonl, and texts.jsonl (further words for a tokenizer).
Prompts hold the choices, solutions end with `The answer is ...`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import record_type
from rlhf_core.data.sources import DirectorySource, Screening
from rlhf_core.data.templates import chat_template
from rlhf_core.data.truncation import Limits
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.reasoning.grading import question_prompt, with_answer
from rlhf_core.reasoning.templates import SHORT, template_words
from rlhf_core.testbed.arithmetic import ArithmeticConfig
from rlhf_core.testbed.reasoning import TESTS, VERSION, Reasoning, ReasoningConfig
from tasks.data_specs.data_sets import data_directory, file_digests, screened
from tasks.params.settings import typed

Row = dict[str, Any]
Sets = dict[str, list[Row]]
SPLITS = ("seen", "unseen")


@dataclass(frozen=True)
class QuestionRows:
    """Rows of each set: supervised examples, training questions, and items of each test set."""

    sft: int
    sft_validation: int
    questions: int
    test: int


@dataclass(frozen=True)
class QuestionsSpec:
    """Questions of the testbed, or of real sets in a folder.

    Args:
        source: 'testbed' or 'directory'.
        task: 'mathematics' or 'multiple_choice'.
        template: chat template.
        limits: `Limits` in tokens, of a question with its solution.
        rows: `QuestionRows`; of real data the most of each.
        world_seed, seed: of the testbed's facts and draws; `seed` is also of how real questions are split.
        difficulty: fields of `ReasoningConfig`, and `arithmetic` with those of `ArithmeticConfig`.
        train: real sets whose split `train` is learnt from.
        tests: {real set: seen or unseen}, whose split `test` is measured.
        columns: {real set: what it is called in tables}, where that differs.
        directory: folder of real sets; without one, the environment variable REWARDSMITH_DATA names it.
        max_bad_share: the largest tolerated share of bad rows of a file.
    """

    source: str
    task: str
    template: str
    limits: Mapping[str, Any]
    rows: Mapping[str, int]
    world_seed: int = 0
    seed: int = 0
    difficulty: Mapping[str, Any] = field(default_factory=dict)
    train: tuple[str, ...] = ()
    tests: Mapping[str, str] = field(default_factory=dict)
    columns: Mapping[str, str] = field(default_factory=dict)
    directory: str | None = None
    max_bad_share: float = 0.1

    def __post_init__(self) -> None:
        if self.source not in ("testbed", "directory"):
            raise RecipeError(f"source is '{self.source}'; questions come from testbed or directory")
        if self.task not in TESTS:
            raise RecipeError(f"task is '{self.task}'; known: {', '.join(TESTS)}")
        if (self.source == "directory") != bool(self.train and self.tests):
            raise RecipeError(
                f"source '{self.source}': 'train' and 'tests' name the sets of a directory, and only of one"
            )
        for name in set(self.columns) - set(self.tests):
            raise RecipeError(f"columns: {name} is none of the tests ({', '.join(self.tests)})")
        for name, split in self.tests.items():
            if split not in SPLITS:
                raise RecipeError(f"tests: {name} is '{split}'; it must be {' or '.join(SPLITS)}")

    @property
    def sizes(self) -> QuestionRows:
        return QuestionRows(**self.rows)

    def reasoning(self) -> Reasoning:
        """The testbed's questions."""
        options = dict(self.difficulty)
        numbers = typed(ArithmeticConfig, _pairs(options.pop("arithmetic", {})), "difficulty: arithmetic")
        return Reasoning(
            typed(ReasoningConfig, {"arithmetic": numbers, **_pairs(options)}, "difficulty"), self.world_seed
        )

    def make(self, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
        sets, facts = self._generated() if self.source == "testbed" else self._read(quarantine)
        sets["prompts"] = [
            {"id": row["id"], "prompt": row["prompt"], "source": row["source"], "meta": row.get("meta", {})}
            for row in sets["questions"]
        ]
        sets["texts"] = [{"text": text} for text in template_words(SHORT)]
        return sets, {**facts, "task": self.task}

    def _generated(self) -> tuple[Sets, dict[str, Any]]:
        made, sizes = self.reasoning(), self.sizes
        sets: Sets = {
            "sft": _asked(made.examples(self.task, sizes.sft, self.seed)),
            "sft.validation": _asked(made.examples(self.task, sizes.sft_validation, self.seed + 1)),
            "questions": _asked(made.questions(self.task, sizes.questions, self.seed)),
        }
        tests = TESTS[self.task]
        for name in tests:
            sets[f"tests/{name}"] = _asked(made.questions(self.task, sizes.test, self.seed + 1, name))
        return sets, {"tests": dict(tests), "questions": {"version": VERSION, "seed": self.world_seed}}

    def _read(self, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
        root, sizes = data_directory(self.directory), self.sizes
        source = DirectorySource(root, Screening(quarantine, self.max_bad_share))
        kind = record_type("question").name
        found = [row for name in self.train for row in source.load(name, "train", kind)]
        learnt = [row for row in _asked(found) if _has_steps(row)]
        if len(learnt) <= sizes.sft_validation:
            raise DataError(
                f"{len(learnt)} of {len(found)} questions have a solution with steps, and {sizes.sft_validation} of "
                "them are kept for validation",
                file=", ".join(self.train),
                field="solution",
                remedy="Name a set with step-by-step solutions, or lower rows: sft_validation",
            )
        # Sets follow each other: in order, the first would be all of the validation.
        random.Random(f"split-{self.seed}").shuffle(learnt)
        held_out, fitted = learnt[: sizes.sft_validation], learnt[sizes.sft_validation :][: sizes.sft]
        sets: Sets = {
            "sft": [_answered(row) for row in fitted],
            "sft.validation": [_answered(row) for row in held_out],
            "questions": fitted[: sizes.questions],
        }
        for name in self.tests:
            sets[f"tests/{self.columns.get(name, name)}"] = _asked(source.load(name, "test", kind))[: sizes.test]
        facts = {
            "tests": {self.columns.get(name, name): split for name, split in self.tests.items()},
            "without_steps": len(found) - len(learnt),
            "quarantine": [screened(summary) for summary in source.summaries],
            "digests": file_digests(root, {*self.train, *self.tests}),
        }
        return sets, facts


def _pairs(values: Mapping[str, Any]) -> dict[str, Any]:
    """Lists as tuples, as the difficulty's ranges are."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _asked(rows: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Rows with their prompt; what is no supervised response becomes a solution that tells its answer."""
    asked = []
    for row in rows:
        found = {**row, "prompt": question_prompt(row["question"], row.get("choices"))}
        if "answer" in row:
            found["solution"] = with_answer(row.get("solution"), str(row["answer"]))
        asked.append(found)
    return asked


def _has_steps(row: Mapping[str, Any]) -> bool:
    """Whether there is more to the solution than the line that tells the answer."""
    return str(row["solution"]) != with_answer(None, str(row["answer"]))


def _answered(row: Mapping[str, Any]) -> Row:
    return {key: row[key] for key in ("id", "prompt", "source")} | {"response": row["solution"]}


def questions_spec(values: Mapping[str, Any], where: str) -> QuestionsSpec:
    """The typed spec, its template, limits and rows checked.

    Raises:
        RecipeError: an unknown or missing field.
    """
    spec = typed(QuestionsSpec, values, where)
    chat_template(spec.template)
    typed(Limits, spec.limits, f"{where}: limits")
    typed(QuestionRows, spec.rows, f"{where}: rows")
    if spec.source == "testbed":
        spec.reasoning()
    return spec
