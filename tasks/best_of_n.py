"""Stage `best_of_n`: the best of the first N responses of a pool by a reward model, against the greedy answer.

Writes metrics.json: for each benchmark and N the win rate over greedy decoding in percent, ties half, by each judge in
both orders (`<judge>/<benchmark>/<N>`) and, where they are known, by true rewards (`true/...`, with
`true_reward/...`); and choices.jsonl with the answers themselves. Source: Sentence, §5.2, appendices B.2 and C.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import torch

from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.evaluation.judges.games import JudgedPair
from rlhf_core.evaluation.reward_bench import check_independence
from tasks.evaluating.policies import both_orders
from tasks.params.evaluation import BestOfNSpec
from tasks.running.artifacts import read_jsonl, write_json, write_jsonl
from tasks.running.loading import load_judge, load_world
from tasks.running.result_rows import PooledAnswers
from tasks.running.stage import PageEntry, stage
from tasks.scoring.reward_models import Scorer, load_scorer

VERSION = 2


def choose(
    scale: Annotated[BestOfNSpec, PageEntry("sizes N, judges and template (YAML)")],
    data: Path,
    sft: Path,
    entropies: Path | None,
    reward_model: Path,
    pool: Annotated[Path, "result of `pool`"],
    result: Path,
    sentences: Path | None = None,
) -> None:
    """Chooses by the reward model and compares with greedy answers."""
    rows: list[PooledAnswers] = read_jsonl(pool / "responses.jsonl")
    for row in rows:
        check_sizes(scale.sizes, len(row["samples"]))
    world = load_world(data)
    judges = {name: load_judge(judge, world) for name, judge in scale.judges.items()}
    scorer = load_scorer(reward_model, data=data, sft=sft, sentences=sentences)
    rewards = pool_rewards(scorer, rows, scale.batch)
    chosen = best_of_first(rewards, scale.sizes)
    metrics: dict[str, float] = {}
    for name in dict.fromkeys(row["benchmark"] for row in rows):
        places = [i for i, row in enumerate(rows) if row["benchmark"] == name]
        for size, best in chosen.items():
            texts = [(rows[i], rows[i]["samples"][best[i]]) for i in places]
            rates = win_rates(texts, judges, scale.template, world)
            metrics |= {f"{judge}/{name}/{size}": value for judge, value in rates.items()}
            metrics[f"reward/{name}/{size}"] = sum(float(rewards[i, best[i]]) for i in places) / len(places)
    choices = [
        {key: row[key] for key in ("benchmark", "id", "prompt", "greedy")}  # type: ignore[literal-required]
        | {"best": {str(size): row["samples"][best[i]] for size, best in chosen.items()}}
        | {"rewards": [float(value) for value in rewards[i]]}
        for i, row in enumerate(rows)
    ]
    write_jsonl(result / "choices.jsonl", choices)
    write_json(result / "metrics.json", {k: float(v) for k, v in metrics.items() if math.isfinite(v)})


def check_sizes(sizes: Sequence[int], pool: int) -> None:
    """Refuses subsets that are empty, repeated or larger than the pool.

    Raises:
        RecipeError: names the sizes and the pool.
    """
    if not sizes or len(set(sizes)) != len(sizes) or min(sizes) < 1 or max(sizes) > pool:
        raise RecipeError(f"sizes are {list(sizes)}; they must be distinct, at least 1 and at most the pool of {pool}")


def best_of_first(rewards: torch.Tensor, sizes: Sequence[int]) -> dict[int, list[int]]:
    """Returns {N: index of the best of each prompt's first N responses}, of equals the first: subsets are nested.

    Args:
        rewards: [prompts, pool] float32.
        sizes: every N, at most the pool.

    Raises:
        RecipeError: an N that the pool does not have.
        NumericsError: a reward that is not finite.
    """
    check_sizes(sizes, rewards.shape[1])
    if not torch.isfinite(rewards).all():
        raise NumericsError("a reward of the pool is not finite, so that no response is the best")
    chosen: dict[int, list[int]] = {}
    for size in sizes:
        first = rewards[:, :size]
        # torch.argmax leaves open which of several equal entries it takes.
        places = torch.arange(size).expand(first.shape)
        equal = first == first.max(dim=1, keepdim=True).values
        chosen[size] = torch.where(equal, places, size).min(dim=1).values.tolist()
    return chosen


def pool_rewards(scorer: Scorer, rows: Sequence[PooledAnswers], batch: int) -> torch.Tensor:
    """Returns [prompts, pool] float32: the reward of every response, equal ones computed once.

    Raises:
        NumericsError: rewards that depend on their batch.
    """
    distinct = [(row, text) for row in rows for text in dict.fromkeys(row["samples"])]
    probes = sorted(distinct, key=lambda pair: len(pair[1]))[:: max(1, len(distinct) // 8)][:8]
    check_independence(scorer, [row for row, _ in probes], [text for _, text in probes])
    values = iter(scorer([row for row, _ in distinct], [text for _, text in distinct], batch))
    known = [{text: next(values) for text in dict.fromkeys(row["samples"])} for row in rows]
    return torch.tensor([[found[text] for text in row["samples"]] for row, found in zip(rows, known, strict=True)])


def win_rates(
    chosen: Sequence[tuple[PooledAnswers, str]], judges: Mapping[str, Any], template: str, world: Any
) -> dict[str, float]:
    """Returns the win rates of chosen responses over the greedy answers, by judge and by the testbed's true rewards."""
    found: dict[str, float] = {}
    pairs = [JudgedPair(row["id"], row["prompt"], text, row["greedy"], {"prompt": row["meta"]}) for row, text in chosen]
    for name, judge in judges.items():
        rates, _ = both_orders(judge, pairs, template)
        found |= {f"{name}{kind}": value for kind, value in rates.items()}
    if world is not None:
        true = [
            (world.true_reward(row["meta"], text), world.true_reward(row["meta"], row["greedy"]))
            for row, text in chosen
        ]
        found["true"] = 100 * sum(0.5 + 0.5 * ((a > b) - (a < b)) for a, b in true) / max(1, len(true))
        found["true_reward"] = sum(a for a, _ in true) / max(1, len(true))
    return found


main = stage(choose)
