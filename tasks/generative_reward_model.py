"""Stage `generative_reward_model`: learns to locate errors and to rewrite solutions, then scores every sampled token.

Writes model/, grm_rewrites.jsonl (the model's own corrections of the wrong samples, the same fields as a teacher's),
token_rewards.jsonl (id of the sample, question_id, prompt, prediction, token_ids of the policy, rewards of the same
length, and the probabilities that they come from), history.jsonl and metrics.json.

It stops when rewrites of held-out questions are right less often than asked for: rewards of a model that cannot
correct would mislead. Its result is then stopped.json alone. Source: RLMEC, sections 4.1 and 4.2, Eq. 4.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from rlhf_core.data.encoding import EncodedSequence, Encoder
from rlhf_core.data.tokenizers import token_spans
from rlhf_core.errors import DataError
from rlhf_core.evaluation.fidelity import negative_credit
from rlhf_core.minimum_editing import mistaken_tokens
from rlhf_core.models.loading import save_model
from rlhf_core.models.policy import Policy
from rlhf_core.reasoning.model_tasks import ModelTasks, correct, locate, token_logprobs
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.reasoning.steps import named_step, says_correct
from rlhf_core.reasoning.templates import TEMPLATES
from rlhf_core.reasoning.token_rewards import RewardRanges, aligned_logprobs, token_rewards
from rlhf_core.testbed.oracle import first_error, minimal_edit
from tasks.evaluating.solving import rewrite_row, wrong_solutions
from tasks.params.pages import Address
from tasks.params.reward_model import GenerativeModelScale, GenerativeModelSpec
from tasks.running.artifacts import Stopped, read_jsonl, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints
from tasks.running.loading import load_encoder, load_policy
from tasks.running.result_rows import Question, SampledSolution, VerifiedRewrite
from tasks.running.stage import PageEntry, read_spec, stage
from tasks.running.supervised import Likelihood, fit, write_model

VERSION = 2


def train_generative_model(
    spec_path: Annotated[Address, "generative reward model (YAML)"],
    scale: Annotated[GenerativeModelScale, PageEntry("training settings (YAML)")],
    data: Path,
    sft: Annotated[Path, "result of `sft` that it starts from"],
    samples: Annotated[Path, "result of `samples`"],
    teacher: Annotated[Path, "result of `teacher`"],
    seed: int,
    result: Path,
    checkpoints: RunCheckpoints,
) -> None:
    """Trains a generative reward model, has it correct the wrong samples, and scores the tokens of all."""
    spec = read_spec(GenerativeModelSpec, spec_path)
    training = scale.training_config(spec, spec_path)
    encoder = load_encoder(data, samples / "tokenizer")
    own = replace(load_encoder(data, sft / "model"), limits=scale.limits)
    tasks, model = ModelTasks(own, TEMPLATES[scale.header]), load_policy(sft / "model", own)
    questions = read_jsonl(data / "questions.jsonl")
    drawn: list[SampledSolution] = read_jsonl(samples / "samples.jsonl")
    material = gather(questions, drawn, teacher, scale.held_out, seed)
    rows, metrics = training_rows(material, tasks, seed)
    history = fit(
        model.model,
        Likelihood(model, rows),
        training,
        seed=seed,
        checkpoints=checkpoints,
        label=f"generative reward model {Address(spec_path).name} seed {seed}",
        file=teacher / "rewrites.jsonl",
    )
    model.model.eval()
    said = correct(model, tasks, material.wrong, max_new_tokens=scale.max_new_tokens, batch=scale.batch)
    if scale.gold:  # of rehearsals alone: each question's own solution
        corrected = [
            rewrite_row(each, 0, str(each.question["solution"]), encoder, scale.rewrites) for each in material.wrong
        ]
        corrected = [{**row, "gold": True} for row in corrected]
    else:
        corrected = [
            rewrite_row(each, named_step(one.located), one.rewrite, encoder, scale.rewrites)
            for each, one in zip(material.wrong, said, strict=True)
        ]
    unlearnt = [each for each in material.right if not material.learnt(each)]
    recognised = [says_correct(text) for text in locate(model, tasks, unlearnt, batch=scale.batch)]
    metrics |= quality(material, {row["id"]: row for row in corrected}, recognised)
    require(metrics, scale.least_accuracy, str(spec_path))
    scored = score_samples(model, tasks, encoder, drawn, {row["id"]: row for row in questions}, scale)
    metrics |= fidelity_metrics(scored, material, encoder)
    metrics["rewritten"] = float(sum(row["accepted"] for row in corrected))
    metrics["prompts_cut"] = own.counts.prompts_cut
    metrics["silent"] = float(sum(not any(row["rewards"]) for row in scored))
    write_model(result, partial(save_model, model.model), own.tokenizer)
    write_jsonl(result / "history.jsonl", history)
    write_jsonl(result / "grm_rewrites.jsonl", corrected)
    write_jsonl(result / "token_rewards.jsonl", scored)
    write_json(result / "metrics.json", {name: float(value) for name, value in metrics.items()})
    print(f"{spec.title}: rewrites right {metrics['rewrite_accuracy']:.2f}")


@dataclass(frozen=True)
class Material:
    """Training material of the stage.

    Attributes:
        wrong: wrong predictions.
        right: right ones, each text of a question once.
        rewrites: the teacher's rows of wrong predictions by sample id.
        held_out: ids of questions that are not learnt from.
    """

    wrong: list[WrongSolution]
    right: list[WrongSolution]
    rewrites: dict[str, VerifiedRewrite]
    held_out: frozenset[str]

    def learnt(self, each: WrongSolution) -> bool:
        return each.question["id"] not in self.held_out


def gather(
    questions: list[Question], samples: list[SampledSolution], teacher: Path, share: float, seed: int
) -> Material:
    """Returns the material of samples and a teacher's rewrites.

    Raises:
        DataError: no accepted rewrite, or no question to hold out.
    """
    wrong = wrong_solutions(samples, questions)
    turned: list[SampledSolution] = [{**row, "correct": not row["correct"]} for row in samples]
    right = {(each.question["id"], each.prediction): each for each in wrong_solutions(turned, questions)}
    rewrites = {row["id"]: row for row in read_jsonl(teacher / "rewrites.jsonl")}
    accepted = sorted({row["question_id"] for row in rewrites.values() if row["accepted"]})
    if len(accepted) < 2:
        raise DataError(
            f"rewrites of {len(accepted)} questions were accepted, and the model needs some to learn from and some to "
            "be measured on",
            file=str(teacher / "rewrites.jsonl"),
            field="accepted",
            remedy="See the teacher's metrics.json for why rewrites are refused; sample more questions",
        )
    count = min(len(accepted) - 1, max(1, round(share * len(accepted))))
    held_out = random.Random(f"held out-{seed}").sample(accepted, count)
    return Material(wrong, list(right.values()), rewrites, frozenset(held_out))


def training_rows(material: Material, tasks: ModelTasks, seed: int) -> tuple[list[EncodedSequence], dict[str, float]]:
    """Returns sequences of both tasks and their counts: fixed predictions, and as many right ones, which stay as they
    are."""
    found: dict[str, list[EncodedSequence]] = {"locating": [], "rewriting": []}
    fixed = [each for each in material.wrong if material.learnt(each) and material.rewrites[each.id]["accepted"]]
    for each in fixed:
        row = material.rewrites[each.id]
        if row["first_error_step"] is not None:
            found["locating"].append(tasks.locating(each, row["first_error_step"]))
        found["rewriting"].append(tasks.rewriting(each, row["rewrite"]))
    right = [each for each in material.right if material.learnt(each)]
    kept = random.Random(f"identity-{seed}").sample(right, min(len(right), len(fixed)))
    for each in kept:
        found["locating"].append(tasks.locating(each, None))
        found["rewriting"].append(tasks.rewriting(each, each.prediction))
    fitting = {name: [row for row in rows if tasks.fits(row)] for name, rows in found.items()}
    counts = {f"{name}_rows": float(len(rows)) for name, rows in fitting.items()}
    counts |= {"identity_rows": float(len(kept)), "too_long": float(sum(map(len, found.values())))}
    counts["too_long"] -= sum(map(len, fitting.values()))
    return [*fitting["locating"], *fitting["rewriting"]], counts


def quality(
    material: Material, found: Mapping[str, VerifiedRewrite], located_right: Sequence[bool]
) -> dict[str, float]:
    """Measures locating and rewriting on held-out questions, beside the teacher where both rewrites are right
    (Figure 4).
    """
    asked = [each for each in material.wrong if not material.learnt(each)]
    taught = [material.rewrites[each.id] for each in asked]
    own = [found[each.id] for each in asked]
    known = [(mine, row) for mine, row in zip(own, taught, strict=True) if row["first_error_step"] is not None]
    metrics = {
        "held_out_wrong": float(len(asked)),
        "rewrite_accuracy": _share([row["reason"] in ("", "too many edits") for row in own]),
        "teacher_rewrite_accuracy": _share([row["accepted"] for row in taught]),
        "locating_agreement": _share([mine["first_error_step"] == row["first_error_step"] for mine, row in known]),
        "correct_recognised": _share(located_right),
    }
    both = [(mine, row) for mine, row in zip(own, taught, strict=True) if mine["accepted"] and row["accepted"]]
    if both:
        metrics["edit_distance"] = sum(mine["edit_distance"] for mine, _ in both) / len(both)
        metrics["teacher_edit_distance"] = sum(row["edit_distance"] for _, row in both) / len(both)
    true = [
        (mine["first_error_step"], first_error(each.question["meta"]["steps"], each.prediction))
        for mine, each in zip(own, asked, strict=True)
        if each.question.get("meta", {}).get("steps")
    ]
    if true:
        marks = [step == right for step, right in true]
        metrics["wrong_located"] = _share(marks)
        metrics["locating_accuracy"] = _share([*marks, *located_right])
    return metrics


def _share(marks: Sequence[bool]) -> float:
    return sum(marks) / max(1, len(marks))


def score_samples(
    policy: Policy,
    tasks: ModelTasks,
    encoder: Encoder,
    samples: list[SampledSolution],
    questions: Mapping[str, Question],
    config: GenerativeModelScale,
) -> list[dict[str, Any]]:
    """Returns the token rewards of every sample, on the tokens that the policy drew, whose encoder is given; policy and
    tasks are the reward model's, the questions by id."""
    ranges = RewardRanges(config.negative, config.positive)
    same = tasks.encoder.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()
    sequences = []
    for row in samples:
        prompt = tasks.rewriting_prompt(WrongSolution(row["id"], questions[row["question_id"]], row["prediction"]))
        sequences.append(EncodedSequence(prompt, row["token_ids"] if same else tasks.answer(row["prediction"])))
    scored: list[dict[str, Any]] = []
    for row, sequence, logprobs in zip(
        samples, sequences, token_logprobs(policy, sequences, config.batch), strict=True
    ):
        if not same:
            logprobs = realigned(row["token_ids"], encoder, sequence.response, tasks.encoder, logprobs)
        probabilities = [float(p) for p in Tensor(logprobs).exp().clamp(max=1)]
        kept = {name: row[name] for name in ("id", "question_id", "prompt", "prediction", "token_ids")}  # type: ignore[literal-required]
        rewards = token_rewards(probabilities, row["correct"], ranges)
        scored.append({**kept, "rewards": rewards, "probabilities": probabilities})
    return scored


def realigned(
    ids: Sequence[int], encoder: Encoder, model_ids: Sequence[int], model_encoder: Encoder, logprobs: Sequence[float]
) -> list[float]:
    """Returns log-probabilities of the policy's tokens from those of another tokenizer's; EOS answers EOS."""
    _, spans = token_spans(encoder.tokenizer, ids)
    _, model_spans = token_spans(model_encoder.tokenizer, model_ids)
    found = aligned_logprobs(spans, model_spans, logprobs)
    if ids and ids[-1] == encoder.eos_id and model_ids[-1] == model_encoder.eos_id:
        found[-1] = logprobs[-1]
    return found


def fidelity_metrics(scored: Sequence[dict[str, Any]], material: Material, encoder: Encoder) -> dict[str, float]:
    """Compares negative rewards with the truly wrong tokens of wrong predictions, where the truth is known.

    The areas under the curve are those of the probabilities, before clipping.
    `vanilla` pays every token of a wrong prediction the same: it finds them all and tells none apart.
    """
    rewards, chances, truth = [], [], []
    by_id = {row["id"]: row for row in scored}
    for each in material.wrong:
        steps = each.question.get("meta", {}).get("steps")
        if steps is None:
            continue
        row = by_id[each.id]
        target = encoder.template.response_ids(encoder.tokenizer, minimal_edit(steps, each.prediction))
        rewards.append(row["rewards"])
        chances.append(row["probabilities"])
        truth.append(mistaken_tokens(row["token_ids"], target))
    if not truth:
        return {}
    clipped, ranked = negative_credit(rewards, truth), negative_credit(chances, truth)
    parts = (clipped, ("precision", "recall", "tokens", "mistaken")), (ranked, ("auc", "auc_within"))
    found = {name: measured[name] for measured, names in parts for name in names if name in measured}
    found |= {"vanilla_precision": clipped["mistaken"] / max(1.0, clipped["tokens"]), "vanilla_auc": 0.5}
    return {f"fidelity/{name}": value for name, value in found.items()}


def require(metrics: Mapping[str, float], least: float, where: str) -> None:
    """Stops where too few held-out rewrites are right.

    Raises:
        Stopped: says how many are, and what to change.
    """
    found = metrics["rewrite_accuracy"]
    if found < least:
        raise Stopped(
            f"{where}: {found:.2f} of the rewrites of {metrics['held_out_wrong']:.0f} held-out wrong predictions are "
            f"right, below least_accuracy {least}; nothing is trained with such rewards. Train longer or on more "
            "questions, take a better teacher (its own share is "
            f"{metrics['teacher_rewrite_accuracy']:.2f}), or lower least_accuracy",
            metrics,
        )


main = stage(train_generative_model)
