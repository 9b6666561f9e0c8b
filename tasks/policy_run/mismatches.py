"""A policy's training and its last evaluation, as metrics, histories and rollouts say them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from tasks.params.evaluation import EvaluationConfig
from tasks.policy_run.run import start_run
from tasks.running.artifacts import read_jsonl
from tasks.running.loading import load_policy, load_world
from tasks.running.mismatches import FinishedStage, Rows, mean
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.running.result_rows import Generation
from tasks.running.typed_results import read_rows

#: Metrics of the last step that a run's metrics repeat, with their names in the history.
LAST_STEP = {"reward": "reward", "entropy": "entropy", "response_length": "response_length", "truncated": "truncated"}
#: Difference in nats, or as a share, from which on a KL is of other weights: those of one step before differ by more.
OTHER_WEIGHTS = 2e-4
#: Mean KL in nats from which on its sign is no matter of few answers.
APPARENT = 0.1
#: Largest difference between a token's reward and the sum of its breakdown, both float32.
SUMMED = 1e-4


def training_mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields metrics of training that are not those of the last step, and rollouts that contradict themselves."""
    history, checkpoints = finished.rows("history.jsonl"), finished.rows("checkpoints.jsonl")
    if history:
        last = history[-1]
        repeated = {name: last[own] for name, own in {**LAST_STEP, "train_kl": "kl"}.items() if own in last}
        repeated |= {f"train_{k}": v for k, v in last.items() if k.startswith("proxy/") or k == "true_reward"}
        for kind in (name.removesuffix("_loss") for name in finished.metrics if name.endswith("_loss")):
            repeated |= {f"{kind}_{name}": last[name] for name in ("loss", "accuracy", "margin") if name in last}
        numbers = {name: value for name, value in repeated.items() if isinstance(value, int | float)}
        yield from finished.metric_mismatches(numbers)
        kept = ("proxy_reward", "proxy_reward_sft", "preference_score")
        if checkpoints and checkpoints[-1]["step"] == last["step"]:
            yield from finished.metric_mismatches(
                {name: checkpoints[-1][name] for name in kept if name in checkpoints[-1]}
            )
        yield from _step_mismatches(history)
    alarms = finished.rows("alarms.jsonl")
    yield from finished.metric_mismatches({"hacking_alarms": float(len(alarms))})
    hacking, kl = finished.rows("hacking.jsonl"), {row["step"]: row.get("kl") for row in checkpoints}
    compared = [row for row in hacking if row["step"] in kl and row is not hacking[-1]]
    yield from finished.row_mismatches("hacking.jsonl", compared, [{"kl": kl[row["step"]]} for row in compared])
    yield from _rollouts(finished)


def _step_mismatches(history: Rows) -> Iterator[str]:
    """Yields steps whose reward is not the sum of its components', and a KL below 0."""
    parts = [[value for name, value in row.items() if name.startswith("reward/")] for row in history]
    torn = sum(
        abs(row["reward"] - math.fsum(own)) > SUMMED * max(1.0, abs(row["reward"]))
        for row, own in zip(history, parts, strict=True)
        if own and "reward" in row
    )
    if torn:
        yield f"history.jsonl has {torn} of {len(history)} steps whose reward is not the sum of its components"
    known = [row for row in history if isinstance(row.get("kl"), float) and isinstance(row.get("kl_k3"), float)]
    kl, never_negative = (mean([row[name] for row in known]) for name in ("kl", "kl_k3"))
    if kl < 0 and never_negative > APPARENT:
        yield f"history.jsonl has a mean KL of {kl:.3g}, but {never_negative:.3g} by an estimate that is never below 0"


def _rollouts(finished: FinishedStage) -> Iterator[str]:
    rows, data = finished.rows("rollouts.jsonl"), finished.input_from("prepare")
    torn = 0
    for row in rows:
        parts = [row["rewards"], row["advantages"], *row["breakdown"].values()]
        sums = [math.fsum(values) for values in zip(*row["breakdown"].values(), strict=False)]
        apart = [abs(a - b) for a, b in zip(row["rewards"], sums, strict=False) if row["breakdown"]]
        torn += any(len(each) != len(row["tokens"]) for each in parts) or max(apart, default=0.0) > SUMMED
    if torn:
        yield f"rollouts.jsonl has {torn} of {len(rows)} rollouts whose rewards are not the sum of their breakdown"
    world = load_world(data) if data is not None and rows else None
    if world is None or data is None or not (data / "prompts.jsonl").exists():
        return
    metas = {row.get("id"): row["meta"] for row in read_jsonl(data / "prompts.jsonl") if row.get("meta") is not None}
    known = [row for row in rows if row["true_reward"] is not None and row["id"] in metas]
    values = [{"true_reward": world.true_reward(metas[row["id"]], row["response"])} for row in known]
    yield from finished.row_mismatches("rollouts.jsonl", known, values)


def credit_mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields credited solutions whose rewrites and probabilities are not those of the stages that made them."""
    rows = finished.rows("credit.jsonl")
    torn = sum(len(row["tokens"]) != len(row[name]) for row in rows for name in ("credit", "mistaken"))
    if torn:
        yield f"credit.jsonl has {torn} lists that are not as long as their tokens"
    teacher, model = finished.input_from("teacher"), finished.input_from("generative_reward_model")
    if teacher is not None:
        yield from finished.copy_mismatches("credit.jsonl", rows, read_jsonl(teacher / "rewrites.jsonl"), ("rewrite",))
    if model is not None:
        given = {row["id"]: row["probabilities"] for row in read_jsonl(model / "token_rewards.jsonl")}
        known = [row for row in rows if "unclipped" in row and row["id"] in given]
        values = [{"unclipped": [chance - 0.5 for chance in given[row["id"]]]} for row in known]
        yield from finished.row_mismatches("credit.jsonl", known, values)


@torch.no_grad()
def weight_mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields a KL of the answers that is not that of the saved weights."""
    data, sft, spec = finished.input_from("prepare"), finished.input_from("sft"), finished.settings(EvaluationConfig)
    stated, model, answers = (
        finished.metrics.get("kl"),
        finished.result / "model",
        finished.result / "generations.jsonl",
    )
    if data is None or sft is None or spec is None or stated is None or not exists_or_raise_if_lost(answers):
        return
    if not all(exists_or_raise_if_lost(folder / "model.safetensors") for folder in (model, sft / "model")):
        return
    run = start_run(data, sft, spec, None, seed=0)
    run.policy = load_policy(model, run.encoder)
    run.policy.model.eval()
    again = run.kl([row for row in read_rows(answers, Generation) if row["benchmark"] in run.kl_sets])
    if not math.isclose(stated, again, rel_tol=OTHER_WEIGHTS, abs_tol=OTHER_WEIGHTS):
        yield f"metrics.json has kl {stated:.6g}, but the saved weights and the answers give {again:.6g}"


def peak_mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields metrics of the peak's weights that do not follow from their answers."""
    rows = [row for row in finished.rows("peak_generations.jsonl") if row.get("benchmark") == "alpaca"]
    if rows:
        yield from finished.metric_mismatches({"peak_alpaca_chars": mean([row["n_chars"] for row in rows])})
    peak, last = (finished.metrics.get(f"{name}win_rate_vs_sft") for name in ("peak_", ""))
    if peak is not None and last is not None:
        yield from finished.metric_mismatches({"loss_after_peak": peak - last})
