"""Trials of tuning: each row of a study at the same points of its optimiser's search space, in worlds of tuning seeds.

A trial is the row with the point's values in its `optimiser`, trained in the cells that the study names by `tuned_at`
(every cell unless given). Trial 3 of row `segment` is the row `segment-t3` of the trees of all seeds.

Points are Sobol's sequence over the search space of a kind of optimiser, the same for every row: more trials continue
it, and no trial's outcome changes the next point.

The record, reference/tuning/<study>.json, has of each trial's run its metric, its evaluations on the way, what training
did and its core-seconds, or why it diverged, stopped or is blank. A run that is recorded is not run again.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, hint
from tasks.graph.items import Item
from tasks.params.row_parser import TRAINING
from tasks.params.studies import FIXED, StudySpec
from tasks.params.tuning import Space, tuning_spec
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_json, read_object
from tasks.running.result_digests import RECORD
from tasks.studies.best_trials import Point, read_tuning, tuning_file
from tasks.studies.equal_kl import EVEN, OVER_SFT
from tasks.studies.tree import OPTIMISER, ROWS, Trial, WorldTree, like_settings
from tasks.studies.world_record import Divergence, row_run, settings_digests

Record = dict[str, Any]
#: Significant digits of a point's values, which a study's file then repeats exactly.
DIGITS = 3
#: The seed by which every sequence is scrambled.
SCRAMBLE = 0


@dataclass(frozen=True)
class TuningPlan:
    """The trials of a study's rows that train a policy.

    Attributes:
        study, spec: its name, and what it says.
        stated: of each row its kind of optimiser, cells, fixed settings and search space, as the record has them.
        points: of each row the settings of every trial.
    """

    study: str
    spec: StudySpec
    stated: Mapping[str, Mapping[str, Any]]
    points: Mapping[str, Sequence[Point]]

    def points_of(self, trials: Iterable[Trial]) -> dict[Trial, Point]:
        """Returns the settings of some trials."""
        return {(row, number): self.points[row][number] for row, number in trials}


def tuning_plan(root: Path, study: str, spec: StudySpec, trials: int) -> TuningPlan:
    """Returns the trials of a study's rows.

    Raises:
        DataError: params/tuning.yaml cannot be read.
        RecipeError: an unknown row, a row in none of the cells of `tuned_at`, an optimiser without a search space, or
            a study without rows that train a policy.
    """
    spaces, kinds = tuning_spec(root).spaces, trained_kinds(root, study, spec)
    if not kinds:
        raise RecipeError(f"study '{study}' has no row that trains a policy; there is nothing to tune")
    stated, points = {}, {}
    for row, kind in kinds.items():
        if not (cells := spec.tuning_cells(row)):
            raise RecipeError(f"study '{study}': rows.{row} is in none of the cells of tuned_at; name one of its own")
        space = {name: asdict(range_) for name, range_ in spaces[kind].items() if name not in spec.fixed(row)}
        stated[row] = {"kind": kind, "cells": cells, "fixed": [*spec.fixed(row)], "space": space}
        drawn = search_points(spaces[kind], trials)
        points[row] = [{name: value for name, value in point.items() if name in space} for point in drawn]
    return TuningPlan(study, spec, stated, points)


def trained_kinds(root: Path, study: str, spec: StudySpec) -> dict[str, str]:
    """Returns the kind of optimiser of each row that trains a policy.

    Raises:
        DataError: params/tuning.yaml cannot be read.
        RecipeError: an unknown row, an optimiser without a search space, or a fixed setting that is not searched.
    """
    spaces, kinds = tuning_spec(root), dict[str, str]()
    for name, row in spec.rows.items():
        settings, where = like_settings(root, study, name, row, ROWS), f"study '{study}': rows.{name}"
        if settings.get("kind", "reward") not in TRAINING:
            continue
        kinds[name] = str(settings.get(OPTIMISER, {}).get("kind"))
        space = spaces.space(kinds[name], where)
        for one in spec.fixed(name):
            if one not in space:
                raise RecipeError(
                    f"{where}.{FIXED} names '{one}', which tuning does not search{hint(one, sorted(space))}"
                )
        if {*spec.fixed(name)} >= {*space}:
            raise RecipeError(f"{where}.{FIXED} has every setting that tuning searches; leave at least one of them")
    return kinds


def search_points(space: Space, trials: int) -> list[Point]:
    """Returns the first points of Sobol's sequence, scrambled, over the ranges by setting; powers of 2 cover the space
    evenly."""
    from scipy.stats import qmc

    bounds = {name: (math.log(one.low), math.log(one.high)) if one.log else (one.low, one.high)
              for name, one in space.items()}  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of numbers that are not a power of 2
        drawn = qmc.Sobol(len(space), scramble=True, seed=SCRAMBLE).random(trials)
    values = [{name: low + share * (high - low) for share, (name, (low, high)) in zip(row, bounds.items(), strict=True)}
              for row in drawn]  # fmt: skip
    return [
        {name: float(f"{math.exp(value) if space[name].log else value:.{DIGITS}g}") for name, value in row.items()}
        for row in values
    ]


def write_tuning(root: Path, record: Record) -> None:
    """Writes the record, whole or not at all."""
    write_whole(root / tuning_file(record["study"]), json.dumps(record, indent=1, sort_keys=True) + "\n")


def record_to_continue(root: Path, plan: TuningPlan, seeds: Sequence[int]) -> Record:
    """Returns the record that tuning continues: of the plan's trials, and of all seeds that it was ever called with.

    Raises:
        DataError: recorded trials are of another metric, or of rows, cells or points that the study no longer has.
    """
    known = read_tuning(root, plan.study) or {"metric": plan.spec.metric, "seeds": [], "rows": {}}
    stated: list[tuple[str, Any, Any]] = [("metric", known["metric"], plan.spec.metric)]
    for row, made in known["rows"].items():
        if row not in plan.stated:
            stated.append((f"rows.{row}", "tuned", "no such row that trains a policy"))
            continue
        stated += [(f"rows.{row}.{name}", made.get(name), value) for name, value in plan.stated[row].items()]
        points = zip((trial["point"] for trial in made["trials"]), plan.points[row], strict=False)
        stated += [(f"rows.{row}, trial {number}", *both) for number, both in enumerate(points)]
    for field, recorded, value in stated:
        if recorded != value:
            remedy = "Restore the study and params/tuning.yaml, or delete the trials here to tune anew"
            file = tuning_file(plan.study).as_posix()
            raise DataError(f"is {recorded}, the study has {value}", file=file, field=field, remedy=remedy)
    rows = {row: known["rows"].get(row, {**own, "trials": []}) for row, own in plan.stated.items()}
    for row, made in rows.items():
        made["trials"] += [{"point": point, "runs": {}} for point in plan.points[row][len(made["trials"]) :]]
    return {
        "study": plan.study, "metric": plan.spec.metric, "seeds": sorted({*known["seeds"], *seeds}), "rows": rows,
    }  # fmt: skip


def trials_of(record: Mapping[str, Any] | None) -> int:
    """Returns how many trials each row has, finished or not."""
    return max((len(made["trials"]) for made in (record or {"rows": {}})["rows"].values()), default=0)


def pending(record: Record, seed: int, numbers: range) -> list[Trial]:
    """Returns the trials of some numbers that have no run with a seed, of every row."""
    rows = record["rows"].items()
    return [(row, n) for n in numbers for row, made in rows if str(seed) not in made["trials"][n]["runs"]]


def check_settings(record: Record, world: WorldTree) -> None:
    """Refuses a tree of trials whose rows were changed, beside the tuned values, since their first trials: in reward
    model, data, scale, another setting or a stage's version.

    Raises:
        DataError: names the row.
    """
    seed = str(world.seed)
    for cell in world.cells:
        for name, digest in settings_digests(world, cell).items():
            row = world.trial_of[name][0]
            for number, trial in enumerate(record["rows"][row]["trials"]):
                run = trial["runs"].get(seed, {}).get(cell)
                if run is not None and run["settings"] != digest:
                    raise DataError(
                        f"trial {number} with seed {seed} in cell '{cell}' was of other settings of the row, its data "
                        "or what it is trained from",
                        file=tuning_file(record["study"]).as_posix(),
                        field=f"rows.{row}",
                        remedy="Restore the settings, or delete the row's trials here to tune it anew",
                    )


def add_runs(
    record: Record, world: WorldTree, commit: str, without: Iterable[str], diverged: Mapping[str, Divergence]
) -> None:
    """Adds the runs of a world's trials to the record, of those that have a result or a divergence in all their cells.

    Args:
        commit: of the code.
        without: addresses of failed and skipped stages.
        diverged: those of them that diverged, or read from one that did, by address.
    """
    found: dict[Trial, dict[str, Any]] = {}
    incomplete, left_out = set[Trial](), {*without} - diverged.keys()
    for cell, file in zip(world.cells, world.pipelines, strict=True):
        digests = settings_digests(world, cell)
        for name, item in world.stages(cell).items():
            trial, address = world.trial_of[name], f"{file}:{item.stage}"
            if address in left_out:
                incomplete.add(trial)
                continue
            made = _run(world.tree, item, record["metric"], diverged.get(address))
            found.setdefault(trial, {})[cell] = {"commit": commit, "settings": digests[name], **made}
    for (row, number), cells in found.items():
        if (row, number) not in incomplete:
            record["rows"][row]["trials"][number]["runs"][str(world.seed)] = cells


def _run(tree: Path, item: Item, metric: str, failure: Divergence | None) -> dict[str, Any]:
    """Returns what the record of tuning has of a run.

    Raises:
        DataError: its stage measures no such metric.
    """
    run = row_run(tree, item, failure)
    cores = read_object(tree / item.out / RECORD)["threads"] if failure is None else failure.cores
    cost = {"core_seconds": round(run["seconds"] * cores, 1)}
    for word in ("diverged", "stopped"):
        if word in run:
            return cost | {word: run[word]}
    if (value := run["metrics"].get(metric)) is None:
        known = sorted(run["metrics"])
        raise DataError(f"{item.stage} has no such metric{hint(metric, known, more=3)}", field="metric")
    if isinstance(value, str):
        word, blank, reason = value.partition("blank: ")
        return cost | ({"blank": reason} if blank else {"diverged": f"{metric} is {word}"})
    points = run["curve"].get("points", [])
    sft = EVEN
    if not metric.endswith(OVER_SFT):
        sft = read_json(tree / str(item.arguments["sft"]) / "metrics.json").get(metric)
    return cost | {
        "metric": round(value, 4),
        "sft": sft,
        "curve": {str(point["step"]): round(point[metric], 4) for point in points if metric in point},
        "training": {name: value for name, value in run["training"].items() if not isinstance(value, str)},
    }
