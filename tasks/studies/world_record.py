"""Making of a world's record from its tree, once all stages have run.

Numbers that diverge are an outcome of a row, and no failure of its world. A policy whose training diverges leaves its
evaluations so far beside its result (`tasks.policy_run.run`), and the row scores what it scored at the last of
them. A row that diverged before its first evaluation, or whose reward or SFT model diverged, has no score.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tasks.graph.items import Item, result_of
from tasks.graph.results import DIVERGED_FILE
from tasks.params.pages import Address, read_settings
from tasks.params.tuning import FILE, tuning_spec
from tasks.running.artifacts import read_json, read_jsonl, read_object
from tasks.running.doubtful_numbers import blank_numbers
from tasks.running.result_digests import exists_or_raise_if_lost
from tasks.studies.records import PILOT, VERDICT, Registration
from tasks.studies.training import curve_of, settings_digest, short_digest, training_of
from tasks.studies.tree import WorldTree
from tasks.studies.tuned import OPTIMISER

#: Fields of a record on the machine that its first row ran on.
MACHINE = ("threads", "device", "host_cpu", "python", "versions")
#: Pattern of the start of a scheduler's message, before the stage's own words.
STAGE_FAILED = re.compile(r"^stage \S+ failed with exit code -?\d+: ")
#: Pattern of a failure's message about numbers that are not finite; an error of a user's function may quote any words.
DIVERGED = re.compile(
    r"^(?!.*reward function \S+ (?:failed|returned)).*"
    r"(?:not finite|gradient norm is (?:nan|inf)|loss \S+, gradient norm \S+)"
)
#: Of a selection's metrics in a record: 1 for a right choice, 0 for another; the mean over worlds is the share.
RIGHT, TRUE_INCONSISTENCY = "right", "true_inconsistency"


class Divergence(NamedTuple):
    """A stage without a result.

    Attributes:
        reason: which numbers are not finite, and in which stage where it is one above.
        seconds: wall seconds that it took.
    """

    reason: str
    seconds: float


def diverged_stages(
    failed: Mapping[str, str], skipped: Mapping[str, str], seconds: Mapping[str, float]
) -> dict[str, Divergence]:
    """Returns the stages without a result since numbers diverged, in them or above, by address.

    Args:
        failed: messages of failed stages by address.
        skipped: for each skipped stage the failed one that it reads from, in words.
        seconds: wall seconds of failed stages by address; a skipped stage took none.
    """
    own = {address: STAGE_FAILED.sub("", said) for address, said in failed.items() if DIVERGED.search(said)}
    found = dict(own)
    for address, why in skipped.items():
        for above, reason in own.items():
            if why.startswith(f"reads from {above},"):
                found[address] = f"{above.rpartition(':')[2]} diverged: {reason}"
    return {address: Divergence(reason, seconds.get(address, 0.0)) for address, reason in found.items()}


def world_record(
    world: WorldTree, own: Registration, commit: str, diverged: Mapping[str, Divergence], *, pilot: bool
) -> dict[str, Any]:
    """Returns the record of a world whose stages have all run.

    Args:
        world: the world.
        own: the study's registration.
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
        names, origins = {item.out: row for row, item in last.items()}, _origins(world, cell, last)
        # the machine is that of the first row
        for item in {item.out: item for item in (*last.values(), *world.items(cell))}.values():
            if item.module == "check":
                continue
            row, failure = names.get(item.out), diverged.get(f"{file}:{item.stage}")
            machine = machine or ({} if failure else _stage_record(world.tree, item))
            if row is None:
                made = _measured(world.tree, item) if failure is None else _without_result(failure)
                found["above"][f"{item.module}/{item.name}"] = made
                continue
            if failure is None:
                made = _measured(world.tree, item) | trained(world.tree, item)
            else:
                made = _diverged(world.tree, item, failure)
            found["rows"][row] = made | {"origin": origins[row]}
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


def _stage_record(tree: Path, item: Item) -> dict[str, Any]:
    return read_object(tree / item.out / "record" / "record.json")


def _measured(tree: Path, item: Item) -> dict[str, Any]:
    """Returns what one stage left: its metrics (or why it stopped), its digest and seconds."""
    result, record = tree / result_of(item), _stage_record(tree, item)
    found: dict[str, Any] = {"result": record["result_digest"], "seconds": record["seconds"]}
    if (result / "stopped.json").exists():
        return found | {"stopped": read_object(result / "stopped.json")["reason"]}
    metrics = read_object(result / "metrics.json") if exists_or_raise_if_lost(result / "metrics.json") else {}
    if item.module == "selection":
        metrics |= right_selection(result, tree / str(item.arguments["data"]))
    blank = {name: f"blank: {reason}" for name, reason in blank_numbers(result).items() if name in metrics}
    return found | {"metrics": _finite(metrics) | blank}


def _without_result(failure: Divergence) -> dict[str, Any]:
    return {"result": None, "seconds": failure.seconds, "diverged": failure.reason}


def _diverged(tree: Path, item: Item, failure: Divergence) -> dict[str, Any]:
    """Returns what a record says of a row that diverged: the metrics of its last evaluation, if it had one."""
    file = tree / item.out / DIVERGED_FILE
    evaluations = read_json(file)["evaluations"] if file.exists() else []
    found = _without_result(failure) | {"metrics": {}, "training": {}, "curve": {}}
    if not evaluations:
        return found
    last = dict(evaluations[-1])
    step = int(last.pop("step"))
    return found | {"metrics": _finite(last), "scored_at": step}


def trained(tree: Path, item: Item) -> dict[str, Any]:
    """Returns what a record says of a row's training: its size and its evaluations on the way."""
    curve = {} if (tree / result_of(item) / "stopped.json").exists() else curve_of(tree, item)
    points = [_finite(point) for point in curve.get("points", ())]
    return {"training": _finite(training_of(tree, item)), "curve": {**curve, "points": points} if curve else {}}


def _origins(world: WorldTree, cell: str, last: Mapping[str, Item]) -> dict[str, dict[str, str]]:
    """Returns of each row of a cell the stage, and digests of its settings, and of the data, SFT model and evaluation
    settings that it was measured on."""
    items = {result_of(item): item for item in world.items(cell)}
    spaces = tuning_spec(world.tree).spaces if (world.tree / FILE).exists() else {}
    found: dict[str, dict[str, str]] = {}
    for row, item in last.items():
        own = read_settings(Address(str(item.arguments["row"])).under(world.tree)) if "row" in item.arguments else {}
        tuned = {*spaces.get(own.get(OPTIMISER, {}).get("kind"), ())} - {*world.spec.fixed(row)}
        found[row] = {"stage": item.module, "settings": settings_digest(world.tree, item, items, tuned)}
        if "evaluation" in item.arguments:
            settings = read_settings(Address(str(item.arguments["evaluation"])).under(world.tree))
            found[row]["evaluation"] = short_digest(json.dumps(settings, sort_keys=True, default=str))
        for name in ("data", "sft"):
            record = (world.tree / str(item.arguments.get(name))).parent / "record" / "record.json"
            if record.exists():
                found[row][name] = read_json(record)["result_digest"]
    return found


def right_selection(selection: Path, data: Path) -> dict[str, float]:
    """Returns an aspect selection's inconsistencies with the true reward, and 1 or 0 for a right or wrong choice.

    The stage `selection` compares aspects with the holistic reward on two answers to each prompt. The testbed's world
    knows the true reward of both answers, so the same comparison is made with it: the useful aspect is the one that
    orders the fewest pairs otherwise than the true reward does, wrong labels of its training included. Empty without a
    world, and where the true reward prefers no answer to another.

    Args:
        selection: result of the stage `selection`.
        data: result of the stage `prepare` that its prompts are of.
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
