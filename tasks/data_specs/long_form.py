"""Data specs of long-form question answering: `testbed-longform` and `directory-longform` (QA-Feedback).

Besides the sets of every data kind (sft, sft.validation, prompts, preference.{train,validation,ood}, benchmarks/alpaca,
examples) both write
    labelled.{train,validation}.jsonl        {id, prompt, response, labels, ...}: slices of answers and whether they are
                                             right, labels {relevance: [[start, end, right]], factuality: [...]}
    completeness.{train,validation}.jsonl    {id, prompt, chosen, rejected, ...}: pairs that differ in completeness
Rows keep `question` and `passages`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.data.schemas import Record
from rlhf_core.data.slices import sentences, sub_sentences
from rlhf_core.errors import DataError
from tasks.data_specs.data_sets import (
    Sets,
    benchmark_row,
    drawn_sets,
    open_directory,
    pair_example,
    source_facts,
    split_off,
    with_prompt,
)
from tasks.params.data import LongFormDirectorySpec, LongFormWorldSpec

#: Kinds of error of QA-Feedback that each aspect is about (Wu et al. 2023, §4.2).
ERROR_KINDS = {
    "relevance": ("Irrelevant", "Redundant", "Incoherent"),
    "factuality": ("Wrong-Grounding", "Unverifiable"),
}
SLICERS = {"relevance": sub_sentences, "factuality": sentences}


def long_form_world_sets(spec: LongFormWorldSpec, _: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets that the testbed draws, and facts about them for data.json."""
    from rlhf_core.testbed.longform import VERSION, LongFormWorld

    world = LongFormWorld(spec.world_seed)
    seed, rows = spec.seed, spec.rows
    sets, facts = drawn_sets(world, spec, VERSION)
    for split, offset in (("train", 0), ("validation", 1)):
        count = rows[f"labelled_{split}"]
        errors = spec.aspect_errors if split == "train" else {}
        sets[f"labelled.{split}"] = world.labelled_answers(count, seed + offset, errors=errors)
        sets[f"completeness.{split}"] = world.preference_pairs(
            count, seed + offset, aspect="completeness", error=errors.get("completeness", 0.0)
        )
    sets["benchmarks/alpaca"] = [
        benchmark_row(row, [row["prompt"]], [world.expert_answer(row["meta"], seed)], [row["meta"]])
        for row in world.prompts(rows["benchmark"], seed + 1, "test")
    ]
    return sets, {"task": "long_form", **facts}


# --- QA-Feedback -------------------------------------------------------------------------------------------------


def shortened_prompt(question: str, passages: Sequence[Sequence[str]], context_chars: int) -> str:
    """Returns the question and passages in the form of QA-Feedback, the passages cut at a sentence.

    Every passage keeps its first sentences; sentences are taken in turn until `context_chars` are reached.
    """
    kept = [0] * len(passages)
    used = sum(len(passage[0]) + 17 for passage in passages)
    for depth in range(max((len(passage) - 1 for passage in passages), default=0)):
        for place, passage in enumerate(passages):
            if depth + 1 < len(passage) and kept[place] == depth and used + len(passage[depth + 1]) < context_chars:
                kept[place], used = depth + 1, used + len(passage[depth + 1]) + 1
    contexts = [
        f"wikipage: {passage[0]} text: {' '.join(passage[1 : 1 + count])}"
        for passage, count in zip(passages, kept, strict=True)
        if count
    ]
    return " ".join([f"question: {question} context:", *contexts])


def labels_of(response: str, errors: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Slices of a response by aspect, [start, end, right]; wrong where an error of the aspect's kinds covers at least
    half of the slice, or lies within it."""
    labels: dict[str, list[list[Any]]] = {}
    for aspect, kinds in ERROR_KINDS.items():
        spans = [(int(e["start"]), int(e["end"])) for e in errors if e["error type"] in kinds]
        labels[aspect] = [
            [start, end, not any(_concerns(span, start, end) for span in spans)]
            for start, end in SLICERS[aspect](response)
        ]
    return labels


def _concerns(span: tuple[int, int], start: int, end: int) -> bool:
    shared = min(span[1], end) - max(span[0], start)
    return shared > 0 and (2 * shared >= end - start or 2 * shared >= span[1] - span[0])


def long_form_directory_sets(spec: LongFormDirectorySpec, quarantine: Path) -> tuple[Sets, dict[str, Any]]:
    """Returns the sets of a folder, and facts about them for data.json; bad rows go to `quarantine`."""
    source = open_directory(spec.directory, quarantine, spec.max_bad_share)
    loaded = {split: source.load(spec.questions, split, "feedback") for split in ("train", "test")}
    questions = {split: [_question(row, spec.context_chars) for row in rows] for split, rows in loaded.items()}
    prompts = {row["id"]: row["prompt"] for rows in questions.values() for row in rows}
    pairs = {
        split: [
            with_prompt(row, prompts[row["question_id"]]) if row["question_id"] in prompts else row
            for row in source.load(spec.preference, split, "preference")
        ]
        for split in ("train", "test")
    }
    fitted, validation = split_off(questions["train"], spec.validation_share, spec.questions)
    held_out = {row["id"] for row in validation}
    labelled = {
        split: [_labelled(row) for row in rows] for split, rows in (("train", fitted), ("validation", validation))
    }
    complete = {
        split: [pair for row in rows if (pair := _completeness_pair(row)) is not None]
        for split, rows in (("train", fitted), ("validation", validation))
    }
    train_pairs = [row for row in pairs["train"] if row["question_id"] not in held_out]
    validation_pairs = [row for row in pairs["train"] if row["question_id"] in held_out]
    if not validation_pairs:
        raise DataError(
            f"no pair of '{spec.preference}' is about one of the {len(held_out)} held-out questions of "
            f"'{spec.questions}', on which reward models are measured",
            field="question_id",
            remedy="Give more pairs, or raise validation_share",
        )
    sets: Sets = {
        "sft": [_answered(row) for row in fitted if row["gold_answer"]],
        "sft.validation": [_answered(row) for row in validation if row["gold_answer"]],
        "prompts": [_prompt(row) for row in fitted],
        "preference.train": train_pairs,
        "preference.validation": validation_pairs,
        "preference.ood": pairs["test"],
        "labelled.train": labelled["train"],
        "labelled.validation": labelled["validation"],
        "completeness.train": complete["train"],
        "completeness.validation": complete["validation"],
        "benchmarks/alpaca": [
            benchmark_row(row, [row["prompt"]], [row["gold_answer"]], [{}])
            for row in questions["test"][: spec.benchmark_rows]
            if row["gold_answer"]
        ],
        "examples": [pair_example(row) for row in validation_pairs[:8]],
    }
    return sets, {"task": "long_form", **source_facts(source, [spec.questions, spec.preference])}


def _question(row: Record, context_chars: int) -> Record:
    prompt = shortened_prompt(row["question"], row["passages"], context_chars)
    return with_prompt(row, prompt) | {"gold_answer": (row.get("gold_answer") or "").strip()}


def _prompt(row: Record) -> Record:
    return {key: row[key] for key in ("id", "prompt", "question", "passages", "source")}


def _answered(row: Record) -> Record:
    return {**_prompt(row), "response": row["gold_answer"]}


def _labelled(row: Record) -> Record:
    response = row["predictions"][0]
    return {**_prompt(row), "response": response, "labels": labels_of(response, row["feedback"]["errors"])}


def _completeness_pair(row: Record) -> Record | None:
    """Returns the corrected prediction over the prediction where information was missing from it."""
    corrected = (row["feedback"].get("corrected_prediction") or "").strip()
    prediction = row["predictions"][0]
    if not row["feedback"]["missing_info"] or not corrected or corrected == prediction.strip():
        return None
    return {**_prompt(row), "chosen": corrected, "rejected": prediction}
