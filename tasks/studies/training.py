"""Training of a row as its result tells it: how much it was trained, on what, and its evaluations on the way."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.recipe import Recipe, parse_recipe
from tasks.graph.dvc_files import stage_version
from tasks.graph.items import Item, result_of
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.settings import typed
from tasks.running.artifacts import read_jsonl, read_object
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.studies.tuned import OPTIMISER

#: Means over the second half of training, and the last value.
MEANS, LAST = ("clip_fraction", "explained_variance", "entropy"), ("kl",)
#: Fields of an evaluation while training that a record keeps.
POINT = ("step", "kl", "n", "win_rate_vs_sft", "win_rate_vs_sft_se", "proxy_reward", "preference_score")
POLICY = "policy"
#: Settings of stages that say which world it is: of generated data, and of the SFT model that twins share.
DRAWN = {"prepare": "world", "sft": "seed"}
#: Fields of a row that change no result.
WORDS = ("title", "notes")


def _rows(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file) if exists_or_raise_if_lost(file) else []


def _recipe(tree: Path, item: Item) -> tuple[Recipe, PolicyScale]:
    row, scale = (Address(str(item.arguments[name])) for name in ("row", "scale"))
    recipe = parse_recipe(read_settings(row.under(tree)), str(row))
    return recipe, typed(PolicyScale, read_settings(scale.under(tree)), str(scale))


def training_of(tree: Path, item: Item) -> dict[str, float]:
    """Returns what a policy's training did: iterations, updates, rollouts and tokens, and its diagnostics.

    Updates are optimiser steps of the policy; rollouts are responses that it sampled to learn from; tokens are those of
    the responses that it learned from, each response counted once (not known of supervised recipes).
    """
    steps = [row for row in _rows(tree / result_of(item) / "history.jsonl") if row.get("step")]
    if item.module != POLICY or not steps:
        return {}
    recipe, scale = _recipe(tree, item)
    if recipe.kind == "supervised":
        found: dict[str, float] = {"iterations": steps[-1]["step"], "updates": steps[-1]["step"], "rollouts": 0}
    else:
        config = scale.optimiser_config(recipe.optimiser, str(item.arguments["row"]))
        found = sizes_of(steps, config)
    half = steps[len(steps) // 2 :]
    for name in MEANS:
        values = [row[name] for row in half if row.get(name) is not None]
        found |= {name: math.fsum(values) / len(values)} if values else {}
    return found | {name: steps[-1][name] for name in LAST if steps[-1].get(name) is not None}


def sizes_of(steps: Sequence[Mapping[str, Any]], config: OptimiserConfig) -> dict[str, float]:
    """Returns iterations, updates of the actor, rollouts and tokens of a policy optimisation.

    Args:
        steps: rows of its history. One in which only the critic learned, or nothing did, has no `grad_norm`.
        config: its settings.
    """
    batch = config.rollout_batch
    trained = [row for row in steps if "grad_norm" in row]
    responses = [batch - 2 * row.get("skipped_pairs", 0) for row in trained]
    return {
        "iterations": len(steps),
        "updates": sum(config.epochs * math.ceil(count / config.minibatch) for count in responses),
        "rollouts": 0 if config.fixed_samples else batch * len(steps),
        "tokens": round(math.fsum(row["response_length"] * batch for row in steps)),
    }


def curve_of(tree: Path, item: Item) -> dict[str, Any]:
    """Returns the evaluations while a policy trained, the final one last, and how their answers were drawn.

    A policy that the alarm set back to earlier weights has no final point: those weights have one already.
    """
    if item.module != POLICY:
        return {}
    result = tree / result_of(item)
    rows, history = _rows(result / "checkpoints.jsonl"), _rows(result / "history.jsonl")
    metrics = read_object(result / "metrics.json")
    last = history[-1]["step"] if history else 0
    if "kept_step" not in metrics and "kl" in metrics:
        rows = [row for row in rows if row["step"] < last] + [{**metrics, "step": last}]
    points = [{name: row[name] for name in POINT if row.get(name) is not None} for row in rows]
    evaluation = Address(str(item.arguments["evaluation"]))
    drawn = typed(EvaluationConfig, read_settings(evaluation.under(tree)), str(evaluation))
    return {"temperature": drawn.temperature, "top_p": drawn.top_p, "top_k": drawn.top_k, "points": points}


def settings_digest(tree: Path, item: Item, items: Mapping[str, Item], tuned: Collection[str]) -> str:
    """Returns a digest of all settings that a row's last stage and the stages above it read, and of their versions.

    No world's seed and no tuned value is a part: a row has one digest in all worlds of a study, in its tuning as well.

    Args:
        tree: of a world.
        item: the row's last stage.
        items: stages of its cell by the folder of their result.
        tuned: settings of the row's optimiser that are left out.
    """
    reached: dict[str, Item] = {}
    ahead = [item]
    while ahead:
        one = ahead.pop()
        reached[one.out] = one
        values = (value if isinstance(value, tuple) else (value,) for value in one.arguments.values())
        needed = [items[str(value)] for several in values for value in several if str(value) in items]
        ahead += [above for above in needed if above.out not in reached]
    parts = []
    for one in reached.values():
        left_out = {DRAWN.get(one.module), *(WORDS if one is item else ())}
        settings = []
        for address in one.addresses:
            own = {name: value for name, value in read_settings(address.under(tree)).items() if name not in left_out}
            if one is item and isinstance(own.get(OPTIMISER), Mapping):
                own[OPTIMISER] = {name: value for name, value in own[OPTIMISER].items() if name not in tuned}
            settings.append(own)
        parts.append(json.dumps([one.module, stage_version(tree, one.module), settings], sort_keys=True, default=str))
    return short_digest("\n".join(sorted(parts)))


def short_digest(text: str) -> str:
    """Returns the first 16 digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
