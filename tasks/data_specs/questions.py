"""Data of questions with step-by-step solutions, for the stage `prepare`: mathematics or multiple choice.

Writes sft.jsonl and sft.validation.jsonl (prompt, response), questions.jsonl (the training questions with their true
solutions), prompts.jsonl (the same as prompts), tests/<name>.jsonl, and texts.jsonl (further words for a tokenizer).
Prompts hold the choices, solutions end with `The answer is ...`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError
from rlhf_core.reasoning.grading import question_prompt, with_answer
from rlhf_core.reasoning.templates import SHORT, template_words
from rlhf_core.testbed.reasoning import TESTS, VERSION
from tasks.data_specs.data_sets import Sets, file_digests, open_directory, screened, with_prompt
from tasks.params.questions import QuestionsSpec


def question_sets(spec: QuestionsSpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets, and facts about them for data.json; bad rows go to `quarantine`."""
    sets, facts = _generated(spec) if spec.source == "testbed" else _read(spec, quarantine)
    sets["prompts"] = [
        {"id": row["id"], "prompt": row["prompt"], "source": row["source"], "meta": row.get("meta", {})}
        for row in sets["questions"]
    ]
    sets["texts"] = [{"text": text} for text in template_words(SHORT)]
    return sets, {**facts, "task": spec.task}


def _generated(spec: QuestionsSpec) -> tuple[Sets, dict[str, Any]]:
    made, sizes = spec.reasoning(), spec.rows
    sets: Sets = {
        "sft": _asked(made.examples(spec.task, sizes.sft, spec.seed)),
        "sft.validation": _asked(made.examples(spec.task, sizes.sft_validation, spec.seed + 1)),
        "questions": _asked(made.questions(spec.task, sizes.questions, spec.seed)),
    }
    tests = TESTS[spec.task]
    for name in tests:
        sets[f"tests/{name}"] = _asked(made.questions(spec.task, sizes.test, spec.seed + 1, name))
    return sets, {"tests": dict(tests), "questions": {"version": VERSION, "seed": spec.world_seed}}


def _read(spec: QuestionsSpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    source, sizes = open_directory(spec.directory, quarantine, spec.max_bad_share), spec.rows
    kind = "question"
    found = [row for name in spec.train for row in source.load(name, "train", kind)]
    learnt = [row for row in _asked(found) if _has_steps(row)]
    if len(learnt) <= sizes.sft_validation:
        raise DataError(
            f"{len(learnt)} of {len(found)} questions have a solution with steps, and {sizes.sft_validation} of "
            "them are kept for validation",
            file=", ".join(spec.train),
            field="solution",
            remedy="Name a set with step-by-step solutions, or lower rows: sft_validation",
        )
    # Sets follow each other: in order, the first would be all of the validation.
    random.Random(f"split-{spec.seed}").shuffle(learnt)
    held_out, fitted = learnt[: sizes.sft_validation], learnt[sizes.sft_validation :][: sizes.sft]
    sets: Sets = {
        "sft": [_answered(row) for row in fitted],
        "sft.validation": [_answered(row) for row in held_out],
        "questions": fitted[: sizes.questions],
    }
    for name in spec.tests:
        sets[f"tests/{spec.columns.get(name, name)}"] = _asked(source.load(name, "test", kind))[: sizes.test]
    facts = {
        "tests": {spec.columns.get(name, name): split for name, split in spec.tests.items()},
        "without_steps": len(found) - len(learnt),
        "quarantine": [screened(summary) for summary in source.summaries],
        "digests": file_digests(Path(source.root), {*spec.train, *spec.tests}),
    }
    return sets, facts


def _asked(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    """Returns rows with their prompt; what is no supervised response becomes a solution that tells its answer."""
    asked = []
    for row in rows:
        found = with_prompt(row, question_prompt(row["question"], row.get("choices")))
        if "answer" in row:
            found["solution"] = with_answer(row.get("solution"), str(row["answer"]))
        asked.append(found)
    return asked


def _has_steps(row: Mapping[str, Any]) -> bool:
    """Returns whether there is more to the solution than the line that tells the answer."""
    return str(row["solution"]) != with_answer(None, str(row["answer"]))


def _answered(row: Mapping[str, Any]) -> Record:
    return {key: row[key] for key in ("id", "prompt", "source")} | {"response": row["solution"]}
