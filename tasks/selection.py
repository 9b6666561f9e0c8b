"""Stage `selection`: which aspects go with the holistic reward, from answers of the initial policy.

The initial policy answers training prompts greedily and by pure sampling (D_p). selection.json holds the chosen
aspects and what they were chosen by (inconsistency and win rate with bootstrap intervals), every aspect's file and
statistics, and the statistics of the holistic reward over D_p, by which policies normalise it; answers.jsonl both
answers to each prompt with all their scores. The measure and the rule: `rlhf_core.evaluation.consistency`.
Source: ALARM, §3.2 and §4.2, Figures 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from rlhf_core.data.encoding import Encoder
from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.evaluation.consistency import Consistency, Pairs, consistency
from rlhf_core.models.sampling import Sampling
from tasks.evaluating.answering import answer
from tasks.evaluating.aspects import LoadedAspect, holistic_values, read_aspects
from tasks.params.aspects import ASPECT_NORMALISERS, SelectionFile, SelectionScale
from tasks.params.pages import Address, read_settings
from tasks.params.settings import typed
from tasks.running.amounts import first_rows
from tasks.running.artifacts import read_jsonl, read_object, stage_output, write_json, write_jsonl
from tasks.running.loading import load_encoder, load_policy
from tasks.running.mismatches import FinishedStage
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.running.result_rows import Prompt
from tasks.running.stage import command_line, prepare_process, run_main
from tasks.running.typed_results import read_rows

#: Increment it when the code changes the result; DVC then runs the stage again.
VERSION = 1
STAGE = "selection"
#: Bootstrap rounds of `mismatches`, which reads estimates and no interval.
VERIFY_ROUNDS = 100


@dataclass(frozen=True)
class Answers:
    """Both answers to each prompt, and what the holistic reward gives for them."""

    rows: list[Prompt]
    greedy: list[str]
    sampled: list[str]
    holistic: dict[str, list[float]]


def _answers(data: Path, sft: Path, reward_model: Path, encoder: Encoder, scale: SelectionScale, seed: int) -> Answers:
    policy = load_policy(sft / "model", encoder)
    policy.model.eval()
    file = data / "prompts.jsonl"
    rows = first_rows(read_rows(file, Prompt), scale.prompts, "prompts", file)
    answers = {}
    for kind, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        sampling = Sampling(scale.max_new_tokens, temperature=temperature, engine=scale.engine)
        answers[kind] = answer(policy, encoder, rows, sampling, seed, scale.batch)
    limit = scale.max_new_tokens
    holistic = {kind: holistic_values(reward_model, encoder, rows, found, limit) for kind, found in answers.items()}
    texts = {kind: [text for text, _ in found] for kind, found in answers.items()}
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


def _interval(found: Any) -> dict[str, float | None]:
    return {name: value if np.isfinite(value) else None for name, value in asdict(found).items()}


def _facts(found: Consistency) -> dict[str, Any]:
    intervals = {"inconsistency": _interval(found.inconsistency), "win_rate": _interval(found.win_rate)}
    return {**intervals, "pairs": found.pairs, "ties": found.ties}


def _compare(
    aspect: LoadedAspect,
    answers: Answers,
    holistic: Pairs,
    training: list[dict[str, Any]],
    scale: SelectionScale,
    seed: int,
) -> tuple[dict[str, Any], dict[str, list[float]], bool]:
    """Returns (what is recorded of an aspect, what it gives for each response, whether it never prefers an answer)."""
    greedy, sampled = (aspect.score(answers.rows, texts) for texts in (answers.greedy, answers.sampled))
    of_response = {"greedy": aspect.rates(greedy), "sampled": aspect.rates(sampled)}
    pairs = Pairs.of(of_response["greedy"], of_response["sampled"], aspect.aspect.higher_is_better)
    found = consistency(holistic, pairs, rounds=scale.rounds, level=scale.level, seed=seed)
    statistics = _statistics([value for one in sampled for value in one.values], f"aspect '{aspect.name}'")
    if ASPECT_NORMALISERS[aspect.spec.normaliser].needs_training_answers:
        trained_on = aspect.score(training, [row["response"] for row in training])
        statistics["training_mean"] = _statistics([v for one in trained_on for v in one.values], aspect.name)["mean"]
    means = {f"{kind}_mean": _statistics(values, aspect.name)["mean"] for kind, values in of_response.items()}
    recorded = {**aspect.facts(), **statistics, **means, **_facts(found), "constant": pairs.constant}
    return recorded, of_response, pairs.constant


def select(
    spec_path: Annotated[Address, "selection file (YAML)"],
    scale_path: Annotated[Address, "how much is compared (YAML)"],
    aspect: Annotated[tuple[Address, ...], "aspects (YAML), in the selection's order"],
    data: Path,
    sft: Path,
    reward_model: Annotated[Path, "result of `reward_model`: the holistic reward"],
    aspect_model: Annotated[tuple[Path, ...] | None, "results of `aspect_model` that the aspects read"],
    seed: int,
    out: Path,
) -> None:
    """Writes which aspects are most consistent with the holistic reward, and by what."""
    prepare_process()
    spec = typed(SelectionFile, read_settings(spec_path), str(spec_path))
    scale = typed(SelectionScale, read_settings(scale_path), str(scale_path))
    rule = spec.rule
    if (given := tuple(Address(one).name for one in aspect)) != tuple(spec.aspects):
        raise RecipeError(f"{spec_path} lists the aspects {list(spec.aspects)}, but {list(given)} are given")
    models = aspect_model or ()
    inputs: list[Path | str] = [spec_path, scale_path, *aspect, data, sft, reward_model, *models]
    with stage_output(out, stage=STAGE, version=VERSION, inputs=inputs) as result:
        encoder = load_encoder(data, sft / "model")
        aspects = read_aspects(aspect, models, encoder.tokenizer)
        answers = _answers(data, sft, reward_model, encoder, scale, seed)
        if not answers.rows:
            raise DataError("there are no prompts to answer", file=str(data / "prompts.jsonl"))
        holistic = Pairs.of(answers.holistic["greedy"], answers.holistic["sampled"])
        statistics = _statistics(answers.holistic["sampled"], "the holistic reward")
        if statistics["std"] <= 0:
            raise DataError("the holistic reward is constant over the initial policy's samples", file=str(reward_model))
        training = read_jsonl(data / "sft.jsonl")
        found, of_response, never_prefer = {}, {}, []
        for one in aspects:
            found[one.name], of_response[one.name], never = _compare(one, answers, holistic, training, scale, seed)
            never_prefer += [one.name] if never else []
        chosen = rule.choose({name: _estimate(facts) for name, facts in found.items()}, never_prefer)
        with_itself = consistency(holistic, holistic, rounds=scale.rounds, level=scale.level, seed=seed)
        z_scores = [(value - statistics["mean"]) / statistics["std"] for value in answers.holistic["sampled"]]
        record = {
            "holistic": {
                "reward_model": spec.holistic,
                **statistics,
                "win_rate": _interval(with_itself.win_rate),
                "pure": z_scores,
            },
            "aspects": found,
            "rule": asdict(rule),
            "chosen": chosen,
            "prompts": len(answers.rows),
        }
        write_json(result / "selection.json", record)
        write_jsonl(result / "answers.jsonl", _rows(answers, of_response))
        write_json(result / "metrics.json", _metrics(record, chosen))


def _estimate(facts: Mapping[str, Any]) -> float:
    value = facts["inconsistency"]["estimate"]
    return float("nan") if value is None else float(value)


def _rows(answers: Answers, of_response: Mapping[str, Mapping[str, list[float]]]) -> list[dict[str, Any]]:
    """Returns both answers to each prompt with their scores."""
    return [
        {
            "id": row.get("id"),
            "prompt": row["prompt"],
            **{
                kind: {
                    "text": texts[i],
                    "holistic": answers.holistic[kind][i],
                    **{name: values[kind][i] for name, values in of_response.items()},
                }
                for kind, texts in (("greedy", answers.greedy), ("sampled", answers.sampled))
            },
        }
        for i, row in enumerate(answers.rows)
    ]


def _metrics(record: Mapping[str, Any], chosen: list[str]) -> dict[str, float]:
    """Returns the flat numbers: inconsistency and win rate of each aspect, which were chosen, and the holistic
    statistics."""
    holistic = record["holistic"]
    metrics = {"holistic_mean": holistic["mean"], "holistic_std": holistic["std"]}
    metrics["win_rate/holistic"] = holistic["win_rate"]["estimate"]
    for name, facts in record["aspects"].items():
        for measure in ("inconsistency", "win_rate"):
            if facts[measure]["estimate"] is not None:
                metrics[f"{measure}/{name}"] = facts[measure]["estimate"]
        metrics[f"chosen/{name}"] = float(name in chosen)
    return {name: float(value) for name, value in metrics.items()}


def mismatches(finished: FinishedStage) -> Iterator[str]:
    """Yields for `rewardsmith verify` estimates and a choice that the scores of both answers do not lead to, and
    metrics that are not theirs."""
    spec, file, rows = (
        finished.settings(SelectionFile),
        finished.result / "selection.json",
        finished.rows("answers.jsonl"),
    )
    if spec is None or not exists_or_raise_if_lost(file) or not rows:
        return
    stated = read_object(file)
    scores = {
        name: ([row["greedy"][name] for row in rows], [row["sampled"][name] for row in rows])
        for name in ("holistic", *stated["aspects"])
    }
    statistics = _statistics(scores["holistic"][1], "the holistic reward")
    yield from finished.row_mismatches("selection.json", [stated["holistic"]], [statistics])
    holistic, facts, never_prefer = Pairs.of(*scores["holistic"]), dict[str, Any](), list[str]()
    for name, recorded in stated["aspects"].items():
        pairs = Pairs.of(*scores[name], recorded["higher_is_better"])
        found = _facts(consistency(holistic, pairs, rounds=VERIFY_ROUNDS, level=0.95, seed=0))
        facts[name] = {measure: {"estimate": found[measure]["estimate"]} for measure in ("inconsistency", "win_rate")}
        own = {measure: {"estimate": recorded[measure]["estimate"]} for measure in facts[name]}
        yield from finished.row_mismatches("selection.json", [own], [facts[name]])
        never_prefer += [name] if pairs.constant else []
    chosen = spec.rule.choose({name: _estimate(found) for name, found in facts.items()}, never_prefer)
    yield from finished.row_mismatches("selection.json", [stated], [{"chosen": chosen}])
    yield from finished.metric_mismatches(_metrics(stated, chosen))


main = command_line(select)


if __name__ == "__main__":
    run_main(main)
