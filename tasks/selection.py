"""Stage `selection`: compares aspects with the holistic reward on answers of the initial policy, and chooses some.

The initial policy is the SFT model. It answers training prompts (the first `prompts` of the settings) twice: greedily,
and by a pure sample, drawn at temperature 1 without top-k or top-p; the paper calls the pure samples D_p.
selection.json has:

- the chosen aspects, and of each aspect its settings, its statistics over pure samples, its inconsistency, and its win
  rate: the percentage of those prompts on which it prefers one answer (50 without any) on which that is the greedy one;
  both with bootstrap intervals
- the statistics of the holistic reward over pure samples, by which policies normalise it

answers.jsonl has both answers to each prompt with all their scores. Measures and rules are in
`rlhf_core.evaluation.consistency`.
Source: ALARM, §3.2 and §4.2, Figures 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from rlhf_core.aspects import Scored
from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.consistency import Pairs, consistency
from rlhf_core.models.sampling import Sampling
from tasks.evaluating.aspects import LoadedAspect, holistic_values, read_aspects
from tasks.evaluating.policies import answer
from tasks.params.aspects import ASPECT_NORMALISERS, SelectionEntry, SelectionScale
from tasks.params.pages import Address
from tasks.running.artifacts import first_rows, read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.result_rows import Prompt
from tasks.running.stage import PageEntry, stage

VERSION = 2


KINDS = ("greedy", "sampled")


def select(
    spec: Annotated[SelectionEntry, PageEntry("selection file (YAML)")],
    scale: Annotated[SelectionScale, PageEntry("how much is compared (YAML)")],
    aspect: Annotated[tuple[Address, ...], "aspects (YAML), in the selection's order"],
    data: Path,
    sft: Path,
    reward_model: Annotated[Path, "result of `reward_model`: the holistic reward"],
    aspect_model: Annotated[tuple[Path, ...] | None, "results of `aspect_model` that the aspects read"],
    seed: int,
    result: Path,
) -> None:
    """Compares the aspects with the holistic reward, and writes the chosen ones and all that they were chosen by."""
    encoder = load_encoder(data, sft / "model")
    aspects = read_aspects(aspect, aspect_model or (), encoder.tokenizer)
    file = data / "prompts.jsonl"
    rows = first_rows(read_jsonl(file), scale.prompts, "prompts", file)
    if not rows:
        raise DataError("there are no prompts to answer", file=str(file))
    answers = _answers(rows, sft, encoder, scale, seed)
    texts = {kind: [text for text, _ in answers[kind]] for kind in KINDS}
    rewards = {k: holistic_values(reward_model, encoder, rows, answers[k], scale.max_new_tokens) for k in KINDS}
    statistics = _statistics(rewards["sampled"], "the holistic reward")
    if statistics["std"] <= 0:
        raise DataError("the holistic reward is constant over the initial policy's samples", file=str(reward_model))
    holistic = Pairs(rewards["greedy"], rewards["sampled"])
    training = read_jsonl(data / "sft.jsonl")
    compared: dict[str, dict[str, Any]] = {}
    values: dict[str, dict[str, list[float]]] = {}
    for one in aspects:
        compared[one.name], values[one.name] = _compare(one, rows, texts, holistic, training, scale, seed)
    estimates = {name: found["inconsistency"]["estimate"] for name, found in compared.items()}
    estimates = {name: math.nan if value is None else value for name, value in estimates.items()}
    chosen = spec.rule.choose(estimates, [name for name, found in compared.items() if found["constant"]])
    # for the win rate of the holistic reward; its inconsistency with itself is 0
    with_itself = consistency(holistic, holistic, rounds=scale.rounds, level=scale.level, seed=seed)
    record = {
        "holistic": {
            "reward_model": spec.holistic,
            **statistics,
            "win_rate": with_itself["win_rate"],
            # of the pure samples, for a gate whose threshold is a quantile of them
            "pure": [(value - statistics["mean"]) / statistics["std"] for value in rewards["sampled"]],
        },
        "aspects": compared,
        "rule": asdict(spec.rule),
        "chosen": chosen,
        "prompts": len(rows),
    }
    write_json(result / "selection.json", record)
    scored: dict[str, Mapping[str, Sequence[Any]]] = {"text": texts, "holistic": rewards, **values}
    write_jsonl(
        result / "answers.jsonl",
        [
            {"id": row.get("id"), "prompt": row["prompt"]}
            | {kind: {name: of_kind[kind][i] for name, of_kind in scored.items()} for kind in KINDS}
            for i, row in enumerate(rows)
        ],
    )
    write_json(result / "metrics.json", _metrics(record, chosen))


def _answers(
    rows: list[Prompt], sft: Path, encoder: Encoder, scale: SelectionScale, seed: int
) -> dict[str, list[tuple[str, int]]]:
    """Returns the SFT model's answers to the prompts, as (text, tokens), greedy and sampled."""
    policy = load_policy(sft / "model", encoder)
    policy.model.eval()
    drawn = {}
    for kind, temperature in zip(KINDS, (0.0, 1.0), strict=True):
        sampling = Sampling(scale.max_new_tokens, temperature=temperature, engine=scale.engine)
        drawn[kind] = answer(policy, encoder, rows, sampling, seed, scale.batch)
    return drawn


def _statistics(values: list[float], what: str) -> dict[str, float]:
    """Returns the mean and population deviation, in float64.

    Raises:
        NumericsError: a value that is not finite.
    """
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise NumericsError(f"selection: {what} is not finite for an answer of the initial policy")
    return {"mean": float(vector.mean()), "std": float(vector.std())} if len(vector) else {"mean": 0.0, "std": 0.0}


def _compare(
    aspect: LoadedAspect,
    rows: list[Prompt],
    texts: Mapping[str, list[str]],
    holistic: Pairs,
    training: list[dict[str, Any]],
    scale: SelectionScale,
    seed: int,
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Returns what selection.json has of an aspect, and its value of each answer."""
    scored = {kind: aspect.score(rows, texts[kind]) for kind in KINDS}
    values = {kind: aspect.rates(scored[kind]) for kind in KINDS}
    pairs = Pairs(values["greedy"], values["sampled"], aspect.aspect.higher_is_better)
    measured = consistency(holistic, pairs, rounds=scale.rounds, level=scale.level, seed=seed)

    def of_spans(answers: Sequence[Scored]) -> dict[str, float]:
        """Returns statistics over the values of all spans, as a normaliser needs them."""
        return _statistics([value for one in answers for value in one.values], f"aspect '{aspect.name}'")

    recorded = {**aspect.recorded(), **of_spans(scored["sampled"])}
    if ASPECT_NORMALISERS[aspect.spec.normaliser].needs_training_answers:
        answered = aspect.score(training, [row["response"] for row in training])
        recorded["training_mean"] = of_spans(answered)["mean"]
    recorded |= {f"{kind}_mean": _statistics(values[kind], aspect.name)["mean"] for kind in KINDS}
    return {**recorded, **measured, "constant": pairs.never_prefers}, values


def _metrics(record: Mapping[str, Any], chosen: list[str]) -> dict[str, float]:
    """Returns the metrics: inconsistency and win rate of each aspect, whether it is chosen, and the statistics of the
    holistic reward."""
    holistic = record["holistic"]
    metrics = {"holistic_mean": holistic["mean"], "holistic_std": holistic["std"]}
    metrics["win_rate/holistic"] = holistic["win_rate"]["estimate"]
    for name, recorded in record["aspects"].items():
        for measure in ("inconsistency", "win_rate"):
            if recorded[measure]["estimate"] is not None:
                metrics[f"{measure}/{name}"] = recorded[measure]["estimate"]
        metrics[f"chosen/{name}"] = float(name in chosen)
    return {name: float(value) for name, value in metrics.items()}


main = stage(select)
