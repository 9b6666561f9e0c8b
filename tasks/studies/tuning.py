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
from tasks.graph.items import Item, result_of
from tasks.params.row_parser import TRAINING
from tasks.params.studies import FIXED, StudySpec
from tasks.params.tuning import Space, tuning_spec
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_json
from tasks.running.doubtful_numbers import blank_numbers
from tasks.studies.equal_kl import EVEN, OVER_SFT
from tasks.studies.training import curve_of, settings_digest, training_of
from tasks.studies.tree import ROWS, Trial, WorldTree, like_settings
from tasks.studies.tuned import OPTIMISER, Point, read_tuning, tuning_file

Record = dict[str, Any]
#: Significant digits of a point's values, which a study's file then repeats exactly.
DIGITS = 3
#: The seed by which every sequence is scrambled.
SCRAMBLE = 0


@dataclass(frozen=True)
class TuningPlan:
    """The trials of a study's rows.

    Attributes:
        study, spec: its name, and what it says.
        optimisers: kind of optimiser of each row that trains a policy.
        drawn: of each kind of optimiser, a point for each trial.
        spaces: ranges of each kind of optimiser.
    """

    study: str
    spec: StudySpec
    optimisers: Mapping[str, str]
    drawn: Mapping[str, Sequence[Point]]
    spaces: Mapping[str, Space]

    def points_of(self, row: str) -> list[Point]:
        """Returns the settings of all trials of a row: the points without what the row fixes."""
        fixed = self.spec.fixed(row)
        points = self.drawn[self.optimisers[row]]
        return [{name: value for name, value in point.items() if name not in fixed} for point in points]

    def stated(self, row: str) -> dict[str, Any]:
        """Returns what a row's trials are of, as its record has it."""
        fixed, kind = self.spec.fixed(row), self.optimisers[row]
        space = {name: asdict(range_) for name, range_ in self.spaces[kind].items() if name not in fixed}
        return {"kind": kind, "cells": self.spec.tuning_cells(row), "fixed": [*fixed], "space": space}

    def points(self, trials: Iterable[Trial]) -> dict[Trial, Point]:
        """Returns the settings of some trials."""
        return {(row, number): self.points_of(row)[number] for row, number in trials}


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
    for name in kinds:
        if not spec.tuning_cells(name):
            raise RecipeError(f"study '{study}': rows.{name} is in none of the cells of tuned_at; name one of its own")
    points = {kind: search_points(spaces[kind], trials) for kind in sorted({*kinds.values()})}
    return TuningPlan(study, spec, kinds, points, spaces)


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


def write_tuning(root: Path, record: Record) -> Path:
    """Writes the record, whole or not at all; returns its file relative to the root."""
    file = tuning_file(record["study"])
    write_whole(root / file, json.dumps(record, indent=1, sort_keys=True) + "\n")
    return file


def record_to_continue(root: Path, plan: TuningPlan, seeds: Sequence[int]) -> Record:
    """Returns the record that tuning continues: of the plan's trials, and of all seeds that it was ever called with.

    Raises:
        DataError: recorded trials are of another metric, or of rows, cells or points that the study no longer has.
    """
    known = read_tuning(root, plan.study) or {"metric": plan.spec.metric, "seeds": [], "rows": {}}
    _check(tuning_file(plan.study).as_posix(), known, plan)
    rows: dict[str, Any] = {}
    for row in plan.optimisers:
        rows[row] = known["rows"].get(row, plan.stated(row) | {"trials": []})
        made = rows[row]["trials"]
        made += [{"point": point, "runs": {}} for point in plan.points_of(row)[len(made) :]]
    return {
        "study": plan.study, "metric": plan.spec.metric, "seeds": sorted({*known["seeds"], *seeds}), "rows": rows,
    }  # fmt: skip


def _check(file: str, known: Mapping[str, Any], plan: TuningPlan) -> None:
    """Refuses recorded trials that are not the plan's."""
    wrong = [] if known["metric"] == plan.spec.metric else [("metric", known["metric"], plan.spec.metric)]
    for row, made in known["rows"].items():
        if row not in plan.optimisers:
            wrong.append((f"rows.{row}", "tuned", "no such row that trains a policy"))
            continue
        stated = [(f"rows.{row}.{name}", made.get(name), value) for name, value in plan.stated(row).items()]
        points = zip((trial["point"] for trial in made["trials"]), plan.points_of(row), strict=False)
        stated += [(f"rows.{row}, trial {number}", *both) for number, both in enumerate(points)]
        wrong += [each for each in stated if each[1] != each[2]]
    for field, recorded, value in wrong:
        remedy = "Restore the study and params/tuning.yaml, or delete the trials here to tune anew"
        raise DataError(f"is {recorded}, the study has {value}", file=file, field=field, remedy=remedy)


def trials_of(record: Mapping[str, Any] | None) -> int:
    """Returns how many trials each row has, finished or not."""
    return max((len(made["trials"]) for made in (record or {"rows": {}})["rows"].values()), default=0)


def pending(record: Record, seed: int, numbers: range) -> list[Trial]:
    """Returns the trials of some numbers that have no run with a seed, of every row."""
    rows = record["rows"].items()
    return [(row, n) for n in numbers for row, made in rows if str(seed) not in made["trials"][n]["runs"]]


def settings_digests(world: WorldTree) -> dict[tuple[str, str], str]:
    """Returns a digest of all that a row's trials are trained from, without the values of their points, by row and
    cell.

    A row of which reward model, data, scale or another setting was changed, or a stage's version, has another digest.
    """
    found = {}
    for cell in world.cells:
        items = {result_of(item): item for item in world.items(cell)}
        for name, item in world.stages(cell).items():
            row, number = world.trial_of[name]
            found[row, cell] = settings_digest(world.tree, item, items, world.trials[row, number])
    return found


def check_digests(record: Record, seed: int, digests: Mapping[tuple[str, str], str]) -> None:
    """Refuses rows that were changed, beside the tuned values, since their first trials.

    Args:
        record: of the tuning.
        seed: of the world.
        digests: of what trials are trained from now, by row and cell.

    Raises:
        DataError: names the row.
    """
    for (row, cell), digest in digests.items():
        for number, trial in enumerate(record["rows"][row]["trials"]):
            run = trial["runs"].get(str(seed), {}).get(cell)
            if run is not None and run["settings"] != digest:
                raise DataError(
                    f"trial {number} with seed {seed} in cell '{cell}' was of other settings of the row, its data or "
                    "what it is trained from",
                    file=tuning_file(record["study"]).as_posix(),
                    field=f"rows.{row}",
                    remedy="Restore the settings, or delete the row's trials here to tune it anew",
                )


def add_runs(
    record: Record,
    world: WorldTree,
    digests: Mapping[tuple[str, str], str],
    commit: str,
    failed: Mapping[str, str],
    diverged: Mapping[str, str],
    spent: Mapping[str, float],
) -> None:
    """Adds the runs of a world's trials to the record.

    Args:
        record: gets the runs of trials that have a result or a divergence in all their cells.
        world: of trials.
        digests: of what they were trained from.
        commit: of the code.
        failed: messages of failed or skipped stages by address.
        diverged: reasons of the failed or skipped stages that diverged, or read from one that did, by address.
        spent: core-seconds of failed stages by address.
    """
    found: dict[Trial, dict[str, Any]] = {}
    incomplete: set[Trial] = set()
    for cell, file in zip(world.cells, world.pipelines, strict=True):
        for name, item in world.stages(cell).items():
            trial, address = world.trial_of[name], f"{file}:{item.stage}"
            if address in failed and address not in diverged:
                incomplete.add(trial)
                continue
            if address in diverged:
                made = {"diverged": diverged[address], "core_seconds": spent.get(address, 0.0)}
            else:
                made = _run(world.tree, item, record["metric"])
            found.setdefault(trial, {})[cell] = {"commit": commit, "settings": digests[trial[0], cell], **made}
    for (row, number), cells in found.items():
        if (row, number) not in incomplete:
            record["rows"][row]["trials"][number]["runs"][str(world.seed)] = cells


def _run(tree: Path, item: Item, metric: str) -> dict[str, Any]:
    """Returns what a finished run gave.

    Raises:
        DataError: its stage measures no such metric.
    """
    result, made = tree / result_of(item), read_json(tree / item.out / "record" / "record.json")
    cost = {"core_seconds": round(made["seconds"] * made["threads"], 1)}
    if (result / "stopped.json").exists():
        return cost | {"stopped": read_json(result / "stopped.json")["reason"]}
    metrics = read_json(result / "metrics.json")
    if metric not in metrics:
        raise DataError(f"{item.stage} has no such metric{hint(metric, sorted(metrics), more=3)}", field="metric")
    if (reason := blank_numbers(result).get(metric)) is not None:
        return cost | {"blank": reason}
    if not math.isfinite(metrics[metric]):
        return cost | {"diverged": f"{metric} is {metrics[metric]}"}
    points = curve_of(tree, item).get("points", [])
    curve = {str(point["step"]): round(point[metric], 4) for point in points if metric in point}
    training = {name: float(f"{value:.5g}") for name, value in training_of(tree, item).items() if math.isfinite(value)}
    if metric.endswith(OVER_SFT):
        sft = EVEN
    else:
        sft = read_json(tree / str(item.arguments["sft"]) / "metrics.json").get(metric)
    return cost | {"metric": round(metrics[metric], 4), "sft": sft, "curve": curve, "training": training}
