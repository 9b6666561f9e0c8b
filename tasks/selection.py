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

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.evaluation.consistency import Consistency, Pairs, consistency
from rlhf_core.evaluation.statistics import Interval
from rlhf_core.models.sampling import Sampling
from tasks.evaluating.aspects import LoadedAspect, holistic_values, read_aspects
from tasks.evaluating.policies import answer
from tasks.params.aspects import ASPECT_NORMALISERS, SelectionEntry, SelectionScale
from tasks.params.pages import Address
from tasks.running.amounts import first_rows
from tasks.running.artifacts import read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.result_rows import Prompt
from tasks.running.stage import PageEntry, stage

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 1


@dataclass(frozen=True)
class Answers:
    """Both answers to each prompt, with their holistic rewards.

    Attributes:
        rows: the prompts.
        greedy, sampled: texts of the answers.
        holistic: raw rewards of the answers, under "greedy" and "sampled".
    """

    rows: list[Prompt]
    greedy: list[str]
    sampled: list[str]
    holistic: dict[str, list[float]]


def _answers(data: Path, sft: Path, reward_model: Path, encoder: Encoder, scale: SelectionScale, seed: int) -> Answers:
    policy = load_policy(sft / "model", encoder)
    policy.model.eval()
    file = data / "prompts.jsonl"
    rows = first_rows(read_jsonl(file), scale.prompts, "prompts", file)
    drawn = {}
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        sampling = Sampling(scale.max_new_tokens, temperature=temperature, engine=scale.engine)
        drawn[kind] = answer(policy, encoder, rows, sampling, seed, scale.batch)
    limit = scale.max_new_tokens
    holistic = {kind: holistic_values(reward_model, encoder, rows, own, limit) for kind, own in drawn.items()}
    texts = {kind: [text for text, _ in own] for kind, own in drawn.items()}
    return Answers(rows, texts["greedy"], texts["sampled"], holistic)


def _statistics(values: list[float], what: str) -> dict[str, float]:
    """Returns the mean and population deviation, in float64.

    Raises:
        NumericsError: a value that is not finite.
    """
    vector = np.asarray(values, dtype=np.float64)
    if not np.isfinite(vector).all():
        raise NumericsError(f"selection: {what} is not finite for an answer of the initial policy")
    return {"mean": float(vector.mean()), "std": float(vector.std())} if len(vector) else {"mean": 0.0, "std": 0.0}


def _interval(interval: Interval) -> dict[str, float | None]:
    """Returns estimate and bounds for JSON, which has no NaN."""
    return {name: value if np.isfinite(value) else None for name, value in asdict(interval).items()}


def _measures(measured: Consistency) -> dict[str, Any]:
    intervals = {"inconsistency": _interval(measured.inconsistency), "win_rate": _interval(measured.win_rate)}
    return {**intervals, "pairs": measured.pairs, "ties": measured.ties}


def _compare(
    aspect: LoadedAspect,
    answers: Answers,
    holistic: Pairs,
    training: list[dict[str, Any]],
    scale: SelectionScale,
    seed: int,
) -> tuple[dict[str, Any], dict[str, list[float]], bool]:
    """Returns what selection.json has of an aspect, its value of each answer, and whether it never prefers one."""
    greedy, sampled = (aspect.score(answers.rows, texts) for texts in (answers.greedy, answers.sampled))
    of_response = {"greedy": aspect.rates(greedy), "sampled": aspect.rates(sampled)}
    pairs = Pairs(of_response["greedy"], of_response["sampled"], aspect.aspect.higher_is_better)
    measured = consistency(holistic, pairs, rounds=scale.rounds, level=scale.level, seed=seed)
    # over the values of all spans, as a normaliser needs them; the means below are over answers
    statistics = _statistics([value for scored in sampled for value in scored.values], f"aspect '{aspect.name}'")
    if ASPECT_NORMALISERS[aspect.spec.normaliser].needs_training_answers:
        trained_on = aspect.score(training, [row["response"] for row in training])
        statistics["training_mean"] = _statistics(
            [value for scored in trained_on for value in scored.values], aspect.name
        )["mean"]
    means = {f"{kind}_mean": _statistics(values, aspect.name)["mean"] for kind, values in of_response.items()}
    recorded = {**aspect.recorded(), **statistics, **means, **_measures(measured), "constant": pairs.never_prefers}
    return recorded, of_response, pairs.never_prefers


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
    rule = spec.rule
    if (given := tuple(Address(address).name for address in aspect)) != tuple(spec.aspects):
        raise RecipeError(f"the selection lists the aspects {list(spec.aspects)}, but {list(given)} are given")
    models = aspect_model or ()
    encoder = load_encoder(data, sft / "model")
    aspects = read_aspects(aspect, models, encoder.tokenizer)
    answers = _answers(data, sft, reward_model, encoder, scale, seed)
    if not answers.rows:
        raise DataError("there are no prompts to answer", file=str(data / "prompts.jsonl"))
    holistic = Pairs(answers.holistic["greedy"], answers.holistic["sampled"])
    statistics = _statistics(answers.holistic["sampled"], "the holistic reward")
    if statistics["std"] <= 0:
        raise DataError("the holistic reward is constant over the initial policy's samples", file=str(reward_model))
    training = read_jsonl(data / "sft.jsonl")
    compared, values, never_prefer = {}, {}, []
    for one in aspects:
        compared[one.name], values[one.name], never = _compare(one, answers, holistic, training, scale, seed)
        never_prefer += [one.name] if never else []
    chosen = rule.choose({name: _inconsistency(recorded) for name, recorded in compared.items()}, never_prefer)
    # for the win rate of the holistic reward; its inconsistency with itself is 0
    with_itself = consistency(holistic, holistic, rounds=scale.rounds, level=scale.level, seed=seed)
    z_scores = [(value - statistics["mean"]) / statistics["std"] for value in answers.holistic["sampled"]]
    record = {
        "holistic": {
            "reward_model": spec.holistic,
            **statistics,
            "win_rate": _interval(with_itself.win_rate),
            "pure": z_scores,  # of the pure samples, for a gate whose threshold is a quantile of them
        },
        "aspects": compared,
        "rule": asdict(rule),
        "chosen": chosen,
        "prompts": len(answers.rows),
    }
    write_json(result / "selection.json", record)
    write_jsonl(result / "answers.jsonl", _rows(answers, values))
    write_json(result / "metrics.json", _metrics(record, chosen))


def _inconsistency(recorded: Mapping[str, Any]) -> float:
    """Returns an aspect's inconsistency; NaN where the holistic reward decides no pair."""
    value = recorded["inconsistency"]["estimate"]
    return float("nan") if value is None else float(value)


def _rows(answers: Answers, values: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    """Returns both answers to each prompt with their holistic rewards and their values by every aspect."""
    return [
        {
            "id": row.get("id"),
            "prompt": row["prompt"],
            **{
                kind: {
                    "text": texts[i],
                    "holistic": answers.holistic[kind][i],
                    **{name: of_aspect[kind][i] for name, of_aspect in values.items()},
                }
                for kind, texts in (("greedy", answers.greedy), ("sampled", answers.sampled))
            },
        }
        for i, row in enumerate(answers.rows)
    ]


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
