"""Stage `sft`: supervised fine-tuning of a backbone, and the evaluation of the fine-tuned model.

A backbone is built from a small configuration (`architecture`) or loaded (`source`: folder or hub id); a loaded one
is fine-tuned only when its spec has a `training` section. In tables the result is the row of the SFT model.
"""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core.models.device import StatedSettings, granted, resolve
from rlhf_core.models.hub_folder import check_architecture_runs
from rlhf_core.models.loading import (
    PRECISIONS,
    build_language_model,
    load_language_model,
    save_model,
    set_attention,
    set_device_defaults,
    set_precision,
)
from rlhf_core.models.policy import policy_of
from rlhf_core.stepper import deepspeed_config
from rlhf_core.supervised.objectives import mean_nll
from tasks.evaluating.benchmarks import write_benchmarks
from tasks.evaluating.policies import Evaluator
from tasks.params.backbone import BackboneSpec
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address
from tasks.running.artifacts import read_jsonl, warn_too_few_rows, write_json, write_jsonl
from tasks.running.checkpoints import RunCheckpoints, reuse_training
from tasks.running.loading import encode, load_encoder, load_judge, load_world
from tasks.running.machine import device
from tasks.running.stage import PageEntry, read_spec, stage
from tasks.running.supervised import Likelihood, fit, write_model

VERSION = 5
STAGE = "sft"


def drawn_examples(rows: list[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """Returns at most `limit` rows, in their order, the same ones each time; None for all."""
    if limit is None or len(rows) <= limit:
        return rows
    places = random.Random("examples of fine-tuning").sample(range(len(rows)), limit)
    return [rows[place] for place in sorted(places)]


def fine_tune(
    spec_path: Annotated[Address, "backbone spec (YAML)"],
    evaluation: Annotated[EvaluationConfig, PageEntry("evaluation spec (YAML)")],
    data: Path,
    tokenizer: Path,
    seed: int,
    result: Path,
    checkpoints: RunCheckpoints,
) -> None:
    """Trains or loads the backbone of a spec, evaluates it, and writes model, metrics, history, generations, judgements
    and what published benchmarks were measured on."""
    spec = read_spec(BackboneSpec, spec_path)
    training = spec.training
    encoder = load_encoder(data, tokenizer)
    world = load_world(data)
    evaluator = Evaluator(data, encoder, evaluation, load_judge(evaluation.judge, world), world)
    if spec.source is None:
        model = build_language_model(spec.architecture or {}, encoder.tokenizer, seed)
    else:
        model = load_language_model(spec.source, dtype=torch.float32)
        check_architecture_runs(model.config, spec.source)
        if len(encoder.tokenizer) > int(model.config.vocab_size):
            model.resize_token_embeddings(len(encoder.tokenizer))
    stated = StatedSettings(spec.precision, spec.attention)
    set_precision(model, PRECISIONS[resolve(stated, granted(), deepspeed=deepspeed_config()).precision])
    if spec.attention is not None:
        set_attention(model, spec.attention)
    set_device_defaults(model)
    model.to(device())  # type: ignore[arg-type]
    policy = policy_of(model, pad_id=encoder.pad_id, eos_id=encoder.eos_id)
    history: list[dict[str, float]] = []
    if training is not None:
        known = read_jsonl(data / "sft.jsonl")
        warn_too_few_rows(spec.examples, len(known), "examples", data / "sft.jsonl")
        examples = drawn_examples(known, spec.examples)
        sequences = encode(encoder, examples, "response", data / "sft.jsonl")
        history = fit(
            model,
            Likelihood(policy, sequences),
            training,
            seed=seed,
            checkpoints=checkpoints,
            label=f"sft {Address(spec_path).name} seed {seed}",
            file=data / "sft.jsonl",
            # the key has the sequences in place of the data: stages whose data differs elsewhere share the training
            shared=reuse_training(STAGE, VERSION, [spec_path, tokenizer], sequences, seed),
        )
    model.eval()
    validation = data / "sft.validation.jsonl"
    held_out = encode(encoder, read_jsonl(validation), "response", validation)
    metrics = {
        "validation_nll": mean_nll(policy, held_out),
        "parameters": float(sum(p.numel() for p in model.parameters())),
        # at the length limits, of the training and validation examples encoded above
        "prompts_cut": float(encoder.counts.prompts_cut),
        "responses_cut": float(encoder.counts.responses_cut),
    }
    evaluated = evaluator.evaluate(policy)
    write_model(result, partial(save_model, model), encoder.tokenizer)
    write_jsonl(result / "history.jsonl", history)
    write_jsonl(result / "generations.jsonl", evaluated.generations)
    write_jsonl(result / "judgements.jsonl", evaluated.judgements)
    write_benchmarks(result, evaluated.benchmarks)
    write_json(result / "metrics.json", {**metrics, **evaluated.metrics})


main = stage(fine_tune, several_processes=True)
