"""Making of a world's record from its tree, once all stages have run.

Numbers that diverge are an outcome of a row, and no failure of its world. A policy whose training diverges leaves its
evaluations so far beside its result (`tasks.policy_run.run`), and the row scores what it scored at the last of
them. A row that diverged before its first evaluation, or whose reward or SFT model diverged, has no score.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.recipe import parse_recipe
from rlhf_core.typed import typed
from tasks.graph.dvc_files import stage_version
from tasks.graph.items import Item, result_of
from tasks.graph.results import DIVERGED_FILE
from tasks.params.evaluation import EvaluationConfig
from tasks.params.pages import Address, read_settings
from tasks.params.policy import PolicyScale
from tasks.params.tuning import FILE, tuning_spec
from tasks.running.artifacts import read_json, read_jsonl, read_object, stage_record
from tasks.running.doubtful_numbers import blank_numbers
from tasks.running.result_digests import RECORD, exists_or_raise_if_lost
from tasks.studies.records import PILOT, VERDICT
from tasks.studies.registration import Registration
from tasks.studies.tree import OPTIMISER, WorldTree

#: Fields of a record on the machine that its first row ran on.
MACHINE = ("threads", "device", "host_cpu", "python", "versions")
#: Pattern of the start of a scheduler's message, before the stage's own words.
STAGE_FAILED = re.compile(r"^stage \S+ failed with exit code -?\d+: ")
#: Pattern of a failure's message about numbers that are not finite; an error of a user's function may quote any words.
DIVERGED = re.compile(
    r"^(?!.*reward function \S+ (?:failed|returned)).*"
    r"(?:not finite|gradient norm is (?:nan|inf)|loss \S+, gradient norm \S+)"
)
#: Means over the second half of training, and the last value.
MEANS, LAST = ("clip_fraction", "explained_variance", "entropy"), ("kl",)
#: Fields of an evaluation while training that a record keeps.
POINT = ("step", "kl", "n", "win_rate_vs_sft", "win_rate_vs_sft_se", "proxy_reward", "preference_score")
#: Settings of stages that say which world it is: of generated data, and of the SFT model that twins share.
DRAWN = {"prepare": "world", "sft": "seed"}
#: Fields of a row that change no result.
WORDS = ("title", "notes")
#: Of a selection's metrics in a record: 1 for a right choice, 0 for another; the mean over worlds is the share.
RIGHT, TRUE_INCONSISTENCY = "right", "true_inconsistency"


class Divergence(NamedTuple):
    """A stage without a result: which numbers are not finite (and in which stage above it), and what it took."""

    reason: str
    seconds: float = 0.0
    cores: int = 1


def diverged_stages(
    failed: Mapping[str, str], skipped: Mapping[str, str], spent: Mapping[str, tuple[float, int]]
) -> dict[str, Divergence]:
    """Returns the stages without a result since numbers diverged, in them or above, by address.

    Args:
        failed: messages of failed stages by address.
        skipped: for each skipped stage the failed one that it reads from, in words.
        spent: the seconds that each failed stage took, and its cores; a skipped stage took none.
    """
    own = {address: STAGE_FAILED.sub("", text) for address, text in failed.items() if DIVERGED.search(text)}
    found = {address: Divergence(reason, *spent.get(address, ())) for address, reason in own.items()}
    for address, why in skipped.items():
        for above, reason in own.items():
            if why.startswith(f"reads from {above},"):
                found[address] = Divergence(f"{above.rpartition(':')[2]} diverged: {reason}")
    return found


def world_record(
    world: WorldTree, own: Registration, commit: str, diverged: Mapping[str, Divergence], *, pilot: bool
) -> dict[str, Any]:
    """Returns the record of a world whose stages have all run.

    Args:
        commit: whose code trained the world.
        diverged: stages without a result by address.
        pilot: its seed is of tuning.
    """
    cells: dict[str, Any] = {}
    machine: dict[str, Any] = {}
    for cell, file in zip(world.cells, world.pipelines, strict=True):
        found: dict[str, dict[str, Any]] = {"rows": {}, "above": {}}
        cells[cell] = found
        last = world.stages(cell)
        names, origins = {item.out: row for row, item in last.items()}, _origins(world, cell)
        # the machine is that of the first row
        for item in {item.out: item for item in (*last.values(), *world.items(cell))}.values():
            if item.module == "check":
                continue
            row, failure = names.get(item.out), diverged.get(f"{file}:{item.stage}")
            machine = machine or ({} if failure else stage_record(world.tree / item.out))
            if row is None:
                found["above"][f"{item.module}/{item.name}"] = _stage_run(world.tree, item, failure)
            else:
                found["rows"][row] = row_run(world.tree, item, failure) | {"origin": origins[row]}
    return {
        "study": own.study,
        "digest": own.digest,
        "commit": commit,
        "kind": PILOT if pilot else VERDICT,
        "world": world.seed,
        "machine": {name: machine[name] for name in MACHINE},
        "cells": cells,
    }


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns numbers rounded to seven digits; of those that are not finite, their names as texts."""
    return {k: float(f"{v:.7g}") if math.isfinite(v) else str(v) for k, v in values.items()}


def _stage_run(tree: Path, item: Item, failure: Divergence | None) -> dict[str, Any]:
    """Returns what one stage left: its metrics (or why there are none), its digest and seconds."""
    if failure is not None:
        return {"result": None, "seconds": failure.seconds, "diverged": failure.reason}
    result, record = tree / result_of(item), read_object(tree / item.out / RECORD)
    found: dict[str, Any] = {"result": record["result_digest"], "seconds": record["seconds"]}
    if (result / "stopped.json").exists():
        return found | {"stopped": read_object(result / "stopped.json")["reason"]}
    metrics = read_object(result / "metrics.json") if exists_or_raise_if_lost(result / "metrics.json") else {}
    if item.module == "selection":
        metrics |= right_selection(result, tree / str(item.arguments["data"]))
    blank = {name: f"blank: {reason}" for name, reason in blank_numbers(result).items() if name in metrics}
    return found | {"metrics": _finite(metrics) | blank}


def row_run(tree: Path, item: Item, failure: Divergence | None = None) -> dict[str, Any]:
    """Returns what a row's last stage left, with the size of its training and its evaluations on the way; of a row that
    diverged, the metrics of its last evaluation, if it had one."""
    found = _stage_run(tree, item, failure)
    if failure is None:
        curve = {} if "stopped" in found else curve_of(tree, item)
        if curve:
            curve["points"] = [_finite(point) for point in curve["points"]]
        return found | {"training": _finite(training_of(tree, item)), "curve": curve}
    file = tree / item.out / DIVERGED_FILE
    found |= {"metrics": {}, "training": {}, "curve": {}}
    if not (evaluations := read_json(file)["evaluations"] if file.exists() else []):
        return found
    last = dict(evaluations[-1])
    step = int(last.pop("step"))
    return found | {"metrics": _finite(last), "scored_at": step}


def _rows(file: Path) -> list[dict[str, Any]]:
    return read_jsonl(file) if exists_or_raise_if_lost(file) else []


def training_of(tree: Path, item: Item) -> dict[str, float]:
    """Returns what a policy's training did: iterations, updates, rollouts and tokens, and its diagnostics.

    Updates are optimiser steps of the policy; rollouts are responses that it sampled to learn from; tokens are those of
    the responses that it learned from, each response counted once (not known of supervised recipes).
    """
    steps = [row for row in _rows(tree / result_of(item) / "history.jsonl") if row.get("step")]
    if item.module != "policy" or not steps:
        return {}
    row, scale = (Address(str(item.arguments[name])) for name in ("row", "scale"))
    recipe = parse_recipe(read_settings(row.under(tree)), str(row))
    if recipe.kind == "supervised":
        found: dict[str, float] = {"iterations": steps[-1]["step"], "updates": steps[-1]["step"], "rollouts": 0}
    else:
        settings = typed(PolicyScale, read_settings(scale.under(tree)), str(scale))
        found = sizes_of(steps, settings.optimiser_config(recipe.optimiser, str(row)))
    half = steps[len(steps) // 2 :]
    for name in MEANS:
        values = [row[name] for row in half if row.get(name) is not None]
        found |= {name: math.fsum(values) / len(values)} if values else {}
    return found | {name: steps[-1][name] for name in LAST if steps[-1].get(name) is not None}


def sizes_of(steps: Sequence[Mapping[str, Any]], config: OptimiserConfig) -> dict[str, float]:
    """Returns iterations, updates of the actor, rollouts and tokens of a policy optimisation.

    Args:
        steps: rows of its history. One in which only the critic learned, or nothing did, has no `grad_norm`.
    """
    batch = config.rollout_batch
    responses = [batch - 2 * row.get("skipped_pairs", 0) for row in steps if "grad_norm" in row]
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
    if item.module != "policy":
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


def _origins(world: WorldTree, cell: str) -> dict[str, dict[str, str]]:
    """Returns of each row of a cell the stage, and digests of its settings, and of the data, SFT model and evaluation
    settings that it was measured on."""
    digests, found = settings_digests(world, cell), {}
    for row, item in world.stages(cell).items():
        found[row] = {"stage": item.module, "settings": digests[row]}
        if "evaluation" in item.arguments:
            settings = read_settings(Address(str(item.arguments["evaluation"])).under(world.tree))
            found[row]["evaluation"] = _digest(json.dumps(settings, sort_keys=True, default=str))
        for name in ("data", "sft"):
            if record := stage_record((world.tree / str(item.arguments.get(name))).parent):
                found[row][name] = record["result_digest"]
    return found


def settings_digests(world: WorldTree, cell: str) -> dict[str, str]:
    """Returns of each row of a cell a digest of all settings that its last stage and the stages above it read, and of
    their versions.

    No world's seed and no tuned value is a part: a row has one digest in all worlds of a study, in its tuning as well.
    """
    spaces = tuning_spec(world.tree).spaces if (world.tree / FILE).exists() else {}
    found = {}
    for row, item in world.stages(cell).items():
        own = read_settings(Address(str(item.arguments["row"])).under(world.tree)) if "row" in item.arguments else {}
        tuned = {*spaces.get(own.get(OPTIMISER, {}).get("kind"), ())} - {*world.spec.fixed(world.trial_of[row][0])}
        parts = []
        for one in (one for one in item.with_all_above() if one.module != "check"):
            left_out = {DRAWN.get(one.module), *(WORDS if one is item else ())}
            settings = []
            for address in one.addresses:
                read = read_settings(address.under(world.tree))
                stated = {name: value for name, value in read.items() if name not in left_out}
                if one is item and isinstance(stated.get(OPTIMISER), Mapping):
                    stated[OPTIMISER] = {n: value for n, value in stated[OPTIMISER].items() if n not in tuned}
                settings.append(stated)
            version = stage_version(world.tree, one.module)
            parts.append(json.dumps([one.module, version, settings], sort_keys=True, default=str))
        found[row] = _digest("\n".join(sorted(parts)))
    return found


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def right_selection(selection: Path, data: Path) -> dict[str, float]:
    """Returns an aspect selection's inconsistencies with the true reward, and 1 or 0 for a right or wrong choice.

    The stage `selection` compares aspects with the holistic reward on two answers to each prompt. The testbed's world
    knows the true reward of both answers, so the same comparison is made with it: the useful aspect is the one that
    orders the fewest pairs otherwise than the true reward does, wrong labels of its training included. Empty without a
    world, and where the true reward prefers no answer to another.

    Args:
        selection: result of the stage `selection`.
        data: result of `prepare` that its prompts are of.
    """
    from rlhf_core.evaluation.consistency import Pairs, SelectionRule, inconsistency
    from tasks.running.loading import load_world

    world = load_world(data)
    if world is None:
        return {}
    made, answers = read_json(selection / "selection.json"), read_jsonl(selection / "answers.jsonl")
    metas = {row["id"]: row["meta"] for row in read_jsonl(data / "prompts.jsonl")}
    greedy = [world.true_reward(metas[row["id"]], row["greedy"]["text"]) for row in answers]
    sampled = [world.true_reward(metas[row["id"]], row["sampled"]["text"]) for row in answers]
    truth, aspects = Pairs(greedy, sampled), made["aspects"]
    if truth.never_prefers:
        return {}

    def pairs(name: str, better: bool) -> Pairs:
        return Pairs([row["greedy"][name] for row in answers], [row["sampled"][name] for row in answers], better)

    found = {name: inconsistency(truth, pairs(name, facts["higher_is_better"])) for name, facts in aspects.items()}
    constant = [name for name, facts in aspects.items() if facts["constant"]]
    useful = SelectionRule(**made["rule"]).choose(found, constant)
    # equally useful aspects count as one
    right = sorted(found[name] for name in made["chosen"]) == sorted(found[name] for name in useful)
    return {f"{TRUE_INCONSISTENCY}/{name}": value for name, value in found.items()} | {RIGHT: float(right)}
