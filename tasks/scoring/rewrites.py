"""Rewrites of wrong solutions, verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError
from rlhf_core.reasoning.rewriting import RewriteLimits, WrongSolution, judged
from tasks.running.result_rows import Question, SampledSolution, VerifiedRewrite


def wrong_solutions(
    samples: Sequence[SampledSolution], questions: Sequence[Question], file: Path
) -> list[WrongSolution]:
    """Returns the wrong samples with their questions.

    Raises:
        DataError: a sample of an unknown question.
    """
    by_id = {row["id"]: row for row in questions}
    found = []
    for number, row in enumerate(samples, start=1):
        if row["question_id"] not in by_id:
            problem = f"the question '{row['question_id']}' is not in the data"
            raise DataError(
                problem, file=str(file), row=number, field="question_id", remedy="Sample from the same data"
            )
        if not row["correct"]:
            found.append(WrongSolution(row["id"], by_id[row["question_id"]], row["prediction"]))
    return found


def rewrite_row(
    wrong: WrongSolution, step: int | None, rewrite: str, encoder: Encoder, limits: RewriteLimits
) -> VerifiedRewrite:
    """Returns a row of rewrites.jsonl."""
    verdict = judged(wrong, rewrite, lambda text: encoder.tokenizer.encode(text, add_special_tokens=False), limits)
    return {
        "id": wrong.id,
        "question_id": wrong.question["id"],
        "prompt": wrong.question["prompt"],
        "prediction": wrong.prediction,
        "first_error_step": step,
        "rewrite": rewrite,
        "accepted": verdict.accepted,
        "reason": verdict.reason,
        "edit_distance": verdict.edit_distance,
    }
