"""Stage `samples`: several solutions of every training question, drawn once from the SFT model and graded.

Writes samples.jsonl, a row per sample: id, question_id, prompt, solution (the true one), answer, prediction, extracted,
correct, and token_ids as drawn (EOS included, where the model produced it); tokenizer/, which
spells them; metrics.json. Source: RLMEC, section 4.1.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.generation import Sampling, generate
from rlhf_core.models.policy import Policy, pad_rows
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.steps import split_steps
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.running.artifacts import check_version, read_jsonl, stage_output, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.progress import progress
from tasks.running.stage import command_line, run_stage, set_threads

VERSION = 1
STAGE = "samples"
#: More steps than this are counted, since the paper's solutions have no more.
MANY_STEPS = 10

Row = dict[str, Any]


@dataclass(frozen=True)
class SamplesSpec:
    """How solutions are drawn.

    Args:
        sampling: `Sampling` of the solutions.
        samples: of every question.
        batch: solutions drawn at a time.
    """

    sampling: Mapping[str, Any]
    samples: int = 5
    batch: int = 256

    def __post_init__(self) -> None:
        if self.samples < 1 or self.batch < 1:
            raise RecipeError(f"samples is {self.samples} and batch {self.batch}; both must be at least 1")


def draw(
    policy: Policy, encoder: Encoder, questions: Sequence[Row], spec: SamplesSpec, sampling: Sampling, seed: int
) -> list[Row]:
    """Graded samples in the order of the questions; questions are batched by length."""
    prompts = [encoder.prompt(row) for row in questions for _ in range(spec.samples)]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    generator = torch.Generator().manual_seed(random.Random(f"samples-{seed}").getrandbits(63))
    drawn: list[list[int]] = [[]] * len(prompts)
    with progress(f"samples seed {seed}", len(order)) as advance:
        for start in range(0, len(order), spec.batch):
            places = order[start : start + spec.batch]
            ids, mask = pad_rows([prompts[i] for i in places], encoder.pad_id, "left")
            made = generate(policy, ids.to(policy.device), mask.to(policy.device), sampling, generator)
            for i, row, real in zip(places, made.ids.cpu(), made.mask.cpu(), strict=True):
                drawn[i] = row[real].tolist()
                advance()
    samples = []
    for i, ids_ in enumerate(drawn):
        question, number = questions[i // spec.samples], i % spec.samples
        prediction = str(encoder.tokenizer.decode(ids_, skip_special_tokens=True))
        samples.append({**sample_row(question, number, prediction), "token_ids": ids_})
    return samples


def sample_row(question: Mapping[str, Any], number: int, prediction: str) -> Row:
    """A graded sample of a question, its `number` from 0."""
    extracted = extract_answer(prediction, question)
    return {
        "id": f"{question['id']}/{number}",
        "question_id": question["id"],
        "prompt": question["prompt"],
        "solution": question["solution"],
        "answer": question["answer"],
        "prediction": prediction,
        "extracted": extracted,
        "correct": is_right(extracted, question),
    }


def statistics(samples: Sequence[Row], eos_id: int) -> dict[str, float]:
    """Sizes of the correct and erroneous sets, and what their solutions look like."""
    by_question: dict[str, list[Row]] = {}
    for row in samples:
        by_question.setdefault(row["question_id"], []).append(row)
    right = [[row["correct"] for row in rows] for rows in by_question.values()]
    steps = [len(split_steps(row["prediction"])) for row in samples]
    correct = sum(row["correct"] for row in samples)
    return {
        "questions": float(len(by_question)),
        "samples": float(len(samples)),
        "correct": float(correct),
        "erroneous": float(len(samples) - correct),
        "accuracy": correct / len(samples),
        "without_answer": float(sum(row["extracted"] is None for row in samples)),
        "cut": float(sum(eos_id not in row["token_ids"] for row in samples)),
        "distinct": float(len({(row["question_id"], row["prediction"]) for row in samples})),
        "all_correct": float(sum(all(marks) for marks in right)),
        "all_erroneous": float(sum(not any(marks) for marks in right)),
        "steps": sum(steps) / len(steps),
        "many_steps": float(sum(count > MANY_STEPS for count in steps)),
        "tokens": sum(len(row["token_ids"]) for row in samples) / len(samples),
    }


def make_samples(
    spec_path: Annotated[Address, "sampling settings (YAML)"],
    data: Path,
    sft: Path,
    seed: int,
    out: Path,
    version: int | None = None,
) -> None:
    """Draws and grades solutions of the training questions."""
    check_version(STAGE, VERSION, version)
    set_threads()
    spec = typed(SamplesSpec, read_settings(spec_path), str(spec_path))
    sampling = typed(Sampling, spec.sampling, f"{spec_path}: sampling")
    with stage_output(out, stage=STAGE, version=VERSION, inputs=[spec_path, data, sft]) as result:
        questions = read_jsonl(data / "questions.jsonl")
        if not questions:
            raise DataError("there is no question", file=str(data / "questions.jsonl"), remedy="Raise rows: questions")
        encoder = load_encoder(data, sft / "model")
        policy = load_policy(sft / "model", encoder)
        samples = draw(policy, encoder, questions, spec, sampling, seed)
        encoder.tokenizer.save_pretrained(result / "tokenizer")
        write_jsonl(result / "samples.jsonl", samples)
        write_json(result / "metrics.json", statistics(samples, encoder.eos_id))


main = command_line(make_samples)


if __name__ == "__main__":
    run_stage(main)
