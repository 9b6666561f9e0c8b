"""Step-by-step solutions of questions: accuracy of greedy ones on each test set, and verified rewrites of wrong ones.

Real GSM8k is also graded as lm-evaluation-harness does: `gsm8k_strict` and `gsm8k_flexible`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_core.evaluation.answers import RLMEC_STOPS, HarnessMode, cut_at, harness_match
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.rewriting import RewriteLimits, WrongSolution, judged
from rlhf_core.reasoning.steps import split_steps
from rlhf_core.testbed.oracle import first_error
from tasks.running.artifacts import read_json
from tasks.running.result_rows import Generation, Question, SampledSolution, VerifiedRewrite

if TYPE_CHECKING:
    from rlhf_core.data.encoding import Encoder

#: The test set that lm-evaluation-harness grades by `#### n` (strict) or the last number (flexible).
HARNESS_SET = "gsm8k"
HARNESS_MODES: tuple[HarnessMode, ...] = ("strict", "flexible")


def test_sets(data: Path) -> dict[str, str]:
    """Returns {test set: seen or unseen} of a prepared data set; empty where it holds no questions."""
    found: dict[str, str] = read_json(data / "data.json").get("tests", {})
    return found


def graded(question: Mapping[str, Any], prediction: str) -> dict[str, Any]:
    """Returns the extracted answer of a prediction, whether it is right, its steps, and where the first wrong one lies.

    A prediction ends where it begins another instruction. `first_error` is known where the question lists the lines
    that are right at each step, and None where no step is wrong.
    """
    prediction = cut_at(prediction, RLMEC_STOPS)
    extracted = extract_answer(prediction, question)
    row: dict[str, Any] = {
        "extracted": extracted,
        "right": is_right(extracted, question),
        "steps": len(split_steps(prediction)),
    }
    steps = question.get("meta", {}).get("steps")
    if steps is not None:
        row["first_error"] = first_error(steps, prediction)
    return row


def solve_tests(
    data: Path,
    items_of: Callable[[str], list[Any]],
    answers_to: Callable[[list[Any]], list[tuple[str, int]]],
    generations: list[Generation],
) -> dict[str, float]:
    """Returns the accuracy in percent on every test set, on seen and unseen ones and over all; the harness's apart.

    Args:
        data: result of `prepare`.
        items_of: reads the questions of a file of the data set.
        answers_to: gives the policy's greedy (text, tokens) for each question.
        generations: gets a row for every solution.
    """
    metrics, harness = dict[str, float](), dict[str, float]()
    sets = test_sets(data)
    for name in sets:
        items = items_of(f"tests/{name}")
        answers = answers_to(items)
        rows = [answered(name, item, *found) for item, found in zip(items, answers, strict=True)]
        for item, row in zip(items, rows, strict=True):
            row.update(graded(item, row["response"]))  # type: ignore[typeddict-item]
        generations += rows
        metrics[name] = 100 * sum(row["right"] for row in rows) / max(1, len(rows))
        if name == HARNESS_SET and read_json(data / "data.json")["source"] == "directory":
            harness |= harness_accuracies([item["answer"] for item in items], [row["response"] for row in rows])
    return metrics | averages(metrics, sets) | harness


def answered(benchmark: str, item: Mapping[str, Any], text: str, tokens: int) -> Generation:
    """Returns an answer to an item with a right answer as a row of generations.jsonl, yet to be graded."""
    return {
        "benchmark": benchmark,
        "id": item["id"],
        "turn": 1,
        "prompt": item["prompt"],
        "response": text,
        "n_chars": len(text),
        "n_tokens": tokens,
        "true_reward": None,
    }


def harness_accuracies(answers: Sequence[str], predictions: Sequence[str]) -> dict[str, float]:
    """Returns {gsm8k_strict, gsm8k_flexible}: accuracy in percent in both modes of lm-evaluation-harness."""
    pairs = list(zip(answers, predictions, strict=True))
    return {
        f"{HARNESS_SET}_{mode}": 100 * sum(harness_match(text, gold, mode) for gold, text in pairs) / max(1, len(pairs))
        for mode in HARNESS_MODES
    }


def averages(metrics: Mapping[str, float], sets: Mapping[str, str]) -> dict[str, float]:
    """Returns means over the seen sets, the unseen ones, and all (`average`), as the paper averages tasks."""
    groups: dict[str, Sequence[str]] = {
        split: [name for name in sets if sets[name] == split] for split in ("seen", "unseen")
    }
    groups["average"] = list(sets)
    return {group: sum(metrics[name] for name in names) / len(names) for group, names in groups.items() if names}


def wrong_solutions(samples: Sequence[SampledSolution], questions: Sequence[Question]) -> list[WrongSolution]:
    """Returns the wrong samples with their questions."""
    by_id = {row["id"]: row for row in questions}
    wrong = (row for row in samples if not row["correct"])
    return [WrongSolution(row["id"], by_id[row["question_id"]], row["prediction"]) for row in wrong]


def rewrite_row(
    wrong: WrongSolution, step: int | None, rewrite: str, encoder: Encoder, limits: RewriteLimits
) -> VerifiedRewrite:
    """Returns a row of rewrites.jsonl."""
    encode = partial(encoder.tokenizer.encode, add_special_tokens=False)
    reason, distance = judged(wrong, rewrite, encode, limits)
    return {
        "id": wrong.id,
        "question_id": wrong.question["id"],
        "prompt": wrong.question["prompt"],
        "prediction": wrong.prediction,
        "first_error_step": step,
        "rewrite": rewrite,
        "accepted": not reason,
        "reason": reason,
        "edit_distance": distance,
    }
