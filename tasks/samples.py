"""Stage `samples`: several solutions of every training question, drawn once from the SFT model and graded.

Writes samples.jsonl, a row per sample: id, question_id, prompt, solution (the true one), answer, prediction, extracted,
correct, and token_ids as drawn (EOS included, where the model produced it); tokenizer/, which
spells them; metrics.json. Source: RLMEC, section 4.1.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError
from rlhf_core.models.policy import Policy
from rlhf_core.reasoning.grading import extract_answer, is_right
from rlhf_core.reasoning.steps import split_steps
from tasks.evaluating.policies import sampled_tokens
from tasks.params.questions import SamplesSpec
from tasks.running.artifacts import read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.progress import progress
from tasks.running.result_rows import Question, SampledSolution
from tasks.running.stage import PageEntry, stage

VERSION = 2
#: More steps than this are counted, since the paper's solutions have no more.
MANY_STEPS = 10


def draw(
    policy: Policy, encoder: Encoder, questions: Sequence[Question], spec: SamplesSpec, seed: int
) -> list[SampledSolution]:
    """Returns the graded samples in the order of the questions."""
    prompts = [encoder.prompt(row) for row in questions for _ in range(spec.samples)]
    generator = torch.Generator().manual_seed(random.Random(f"samples-{seed}").getrandbits(63))
    with progress(f"samples seed {seed}", len(prompts)) as advance:
        drawn = sampled_tokens(policy, prompts, encoder.pad_id, spec.sampling, generator, spec.batch, advance)
    samples = []
    for i, ids in enumerate(drawn):
        question, number = questions[i // spec.samples], i % spec.samples
        if number < spec.gold:
            samples.append(gold_sample(question, number, encoder))
            continue
        sample = sample_row(question, number, str(encoder.tokenizer.decode(ids, skip_special_tokens=True)))
        sample["token_ids"] = ids
        samples.append(sample)
    return samples


def gold_sample(question: Question, number: int, encoder: Encoder) -> SampledSolution:
    """Returns a question's own solution as a sample that is marked as gold; for rehearsals alone."""
    sample = sample_row(question, number, str(question["solution"]))
    encoded = encoder.sequence(question, sample["prediction"])
    sample["token_ids"] = [int(token) for token in encoded.response]
    sample["gold"] = True
    return sample


def sample_row(question: Question, number: int, prediction: str) -> SampledSolution:
    """Returns a graded sample of a question, its `number` from 0."""
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


def statistics(samples: Sequence[SampledSolution], eos_id: int) -> dict[str, float]:
    """Returns sizes of the correct and erroneous sets, and what their solutions look like."""
    by_question: dict[str, list[SampledSolution]] = {}
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
    spec: Annotated[SamplesSpec, PageEntry("sampling settings (YAML)")],
    data: Path,
    sft: Path,
    seed: int,
    result: Path,
) -> None:
    """Draws and grades solutions of the training questions."""
    questions = read_jsonl(data / "questions.jsonl")
    if not questions:
        raise DataError("there is no question", file=str(data / "questions.jsonl"), remedy="Raise rows: questions")
    encoder = load_encoder(data, sft / "model")
    policy = load_policy(sft / "model", encoder)
    samples = draw(policy, encoder, questions, spec, seed)
    encoder.tokenizer.save_pretrained(result / "tokenizer")
    write_jsonl(result / "samples.jsonl", samples)
    write_json(result / "metrics.json", statistics(samples, encoder.eos_id))


main = stage(make_samples)
