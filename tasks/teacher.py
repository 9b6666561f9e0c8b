"""Stage `teacher`: a teacher corrects the wrong samples, and its answers are verified.

Writes rewrites.jsonl, a row per wrong sample: id, question_id, prompt, prediction, first_error_step (None where none is
named), rewrite, accepted, reason (why not), edit_distance (in tokens of the policy); metrics.json with acceptance and,
for the testbed's questions, how often the step is the true one. Calls and costs are in record/costs.json, since a
cached answer is not paid for twice. Source: RLMEC, section 4.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

from rlhf_core.data.encoding import Encoder
from rlhf_core.minimum_editing import edit_distance
from rlhf_core.reasoning.rewriting import REASONS, Teacher, WrongSolution
from rlhf_core.reasoning.steps import named_step
from rlhf_core.teachers.choices import TEACHERS
from rlhf_core.testbed.oracle import first_error
from rlhf_core.typed import typed
from tasks.evaluating.solving import rewrite_row, wrong_solutions
from tasks.params.questions import TeacherSpec
from tasks.running.artifacts import read_jsonl, record_folder, write_json, write_jsonl
from tasks.running.loading import expanded, load_encoder, load_policy
from tasks.running.result_rows import VerifiedRewrite
from tasks.running.stage import PageEntry, stage

VERSION = 1


def rewrite_metrics(rows: Sequence[VerifiedRewrite], wrong: Sequence[WrongSolution]) -> dict[str, float]:
    """Returns counts of accepted and refused rewrites, edit distances, and the share of true first steps."""
    accepted = [row for row in rows if row["accepted"]]
    metrics = {
        "wrong": float(len(rows)),
        "accepted": float(len(accepted)),
        "accepted_share": len(accepted) / max(1, len(rows)),
        "edit_distance": sum(row["edit_distance"] for row in accepted) / max(1, len(accepted)),
        "located": float(sum(row["first_error_step"] is not None for row in rows)),
    }
    metrics |= {
        f"refused/{reason.replace(' ', '_')}": float(sum(row["reason"] == reason for row in rows)) for reason in REASONS
    }
    known = [(row, each.question["meta"]["steps"]) for row, each in zip(rows, wrong, strict=True) if _steps(each)]
    if known:
        right = sum(row["first_error_step"] == first_error(steps, row["prediction"]) for row, steps in known)
        metrics["locating_accuracy"] = right / len(known)
    return metrics


def ground_truth_distance(
    rows: Sequence[VerifiedRewrite], wrong: Sequence[WrongSolution], encoder: Encoder
) -> dict[str, float]:
    """Returns the edit distances in tokens from accepted predictions to the true solutions (Figure 4)."""

    tokens = partial(encoder.tokenizer.encode, add_special_tokens=False)
    distances = [
        edit_distance(tokens(each.prediction), tokens(str(each.question["solution"])))
        for row, each in zip(rows, wrong, strict=True)
        if row["accepted"]
    ]
    return {"ground_truth_edit_distance": sum(distances) / len(distances)} if distances else {}


def _steps(wrong: WrongSolution) -> bool:
    return bool(wrong.question.get("meta", {}).get("steps"))


def make_rewrites(
    spec: Annotated[TeacherSpec, PageEntry("teacher spec (YAML)")],
    data: Path,
    sft: Path,
    samples: Annotated[Path, "result of `samples`"],
    result: Path,
) -> None:
    """Has the wrong samples corrected and verifies the corrections."""
    options = {name: expanded(f"options.{name}", value) for name, value in spec.options.items()}
    teacher: Teacher = typed(TEACHERS[spec.kind], options, "options").teacher(load_policy)
    encoder = load_encoder(data, sft / "model")
    wrong = wrong_solutions(read_jsonl(samples / "samples.jsonl"), read_jsonl(data / "questions.jsonl"))
    rows = [
        rewrite_row(each, named_step(said.located), said.rewrite, encoder, spec.limits)
        for each, said in zip(wrong, teacher.correct(wrong), strict=True)
    ]
    write_jsonl(result / "rewrites.jsonl", rows)
    metrics = rewrite_metrics(rows, wrong) | ground_truth_distance(rows, wrong, encoder)
    write_json(result / "metrics.json", metrics)
    write_json(record_folder(result) / "costs.json", {"teacher": teacher.name, **teacher.costs()})


main = stage(make_rewrites)
