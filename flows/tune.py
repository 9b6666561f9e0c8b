"""Tuning of a study's rows: the same points for every row of a kind of optimiser, in worlds of tuning seeds.

A trial is one row at one point; a point is one value for each setting of the search space. The same command continues
an interrupted tuning; trials that are in reference/tuning/<study>.json are not run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger

from flows.scheduler import RunFailed, RunSummary, run_stale
from tasks.commands.study import print_tuning
from tasks.params.studies import read_study, study_file
from tasks.running.commit import commit_of
from tasks.studies.registration import check_tuning_seed, refuse_if_started
from tasks.studies.tree import Trial, WorldTree, write_tree
from tasks.studies.tuned import read_tuning, tuned_rows, tuning_file, write_overrides
from tasks.studies.tuning import (
    Record,
    TuningPlan,
    add_runs,
    check_digests,
    pending,
    record_to_continue,
    settings_digests,
    taken_over,
    trials_of,
    tuning_plan,
    write_tuning,
)
from tasks.studies.world_record import diverged_stages

WORK = Path(".work") / "tuning"
TRIALS, SEEDS = 16, (100,)
#: Each row runs as many trials before any row runs more, so that an interrupted tuning has as many trials of each row.
TRIALS_PER_ROUND = 4


def write_trial_world(root: Path, plan: TuningPlan, seed: int, trials: Sequence[Trial]) -> WorldTree:
    """Writes the tree of some trials in the world of a seed, over the tree of other trials, whose results stay."""
    world = WorldTree(plan.study, plan.trial_rows(trials), seed, root / WORK / plan.study / str(seed))
    write_tree(root, world)
    return world


def run_trials(root: Path, plan: TuningPlan, record: Record, seed: int, trials: Sequence[Trial]) -> None:
    """Trains trials in the world of a seed and writes their results into the record's file. Call it inside a flow.

    Raises:
        DataError: a row was changed since its first trials.
        RunFailed: a stage failed for a reason other than divergence.
    """
    world = write_trial_world(root, plan, seed, trials)
    digests = settings_digests(world, plan)
    check_digests(record, seed, digests)
    summary = run_stale(world.tree, world.pipelines)
    get_run_logger().info("seed %d, trials %s: %s", seed, sorted({number for _, number in trials}), summary.line())
    diverged = {stage: one.reason for stage, one in diverged_stages(summary.failed, summary.skipped, {}).items()}
    without_result = {**summary.skipped, **summary.failed}
    add_runs(record, world, digests, commit_of(root), without_result, diverged, _core_seconds_of_failed(summary))
    write_tuning(root, record)
    if problems := [message for stage, message in summary.failed.items() if stage not in diverged]:
        raise RunFailed(f"seed {seed}: {summary.line()}. " + "; ".join(problems))


def _core_seconds_of_failed(summary: RunSummary) -> dict[str, float]:
    """Returns the core-seconds of failed stages by address."""
    ended = (time for time in summary.stage_times.stages if time.stage in summary.failed)
    return {time.stage: round(time.seconds * time.cores, 1) for time in ended}


def plan_and_record(root: Path, name: str, trials_per_row: int, seeds: Sequence[int]) -> tuple[TuningPlan, Record]:
    """Returns the plan of a study's trials, which includes the recorded ones, and their record.

    Raises:
        DataError: recorded trials are of other rows, cells or points.
        RecipeError: an unknown study, or a seed that is not of tuning.
    """
    for seed in seeds:
        check_tuning_seed(seed)
    file = study_file(root, name)
    known = trials_of(read_tuning(root, file.stem))
    plan = tuning_plan(root, file.stem, read_study(file), max(trials_per_row, known))
    return plan, record_to_continue(root, plan, seeds)


def missing_trials(record: Record) -> list[tuple[int, list[Trial]]]:
    """Returns the trials that have not run, with their seed, in the order in which they run: round by round."""
    count = trials_of(record)
    rounds = [range(first, min(first + TRIALS_PER_ROUND, count)) for first in range(0, count, TRIALS_PER_ROUND)]
    found = [(seed, pending(record, seed, numbers)) for numbers in rounds for seed in record["seeds"]]
    return [(seed, trials) for seed, trials in found if trials]


@flow(
    name="tune",
    description="Tunes the rows of a study on tuning seeds.",
    flow_run_name="tune {name}",
    persist_result=False,
)
def tune(name: str, trials: int = TRIALS, seeds: tuple[int, ...] = SEEDS, keep: bool = False, root: str = ".") -> str:
    """Runs the trials of a study that have not run.

    Args:
        name: of the study, studies/<name>.yaml.
        trials: number of points that each row is tried at.
        seeds: tuning seeds; each trial runs with each of them.
        keep: keep the worlds' trees in .work/tuning/, weights included.
        root: the repository.
    """
    folder = Path(root).resolve()
    plan, record = plan_and_record(folder, name, trials, seeds)
    refuse_if_started(folder, plan.study)
    for seed, missing in missing_trials(record):
        run_trials(folder, plan, record, seed, missing)
    _tidy(folder, plan, keep)
    trials_of_rows = f"{trials_of(record)} trials of each of {len(plan.optimisers)} rows"
    return f"{plan.study}: {trials_of_rows} are in {tuning_file(plan.study)}"


def take_over_trials(root: Path, name: str, other: str) -> Record:
    """Writes the trials that another study has of rows of the same names, settings and cells as a study's own; returns
    the record.

    Raises:
        DataError: there are none, the study has trials of its own, or theirs are of other settings.
    """
    file = study_file(root, name)
    refuse_if_started(root, file.stem)
    theirs = read_tuning(root, other)
    plan = tuning_plan(root, file.stem, read_study(file), max(1, trials_of(theirs)))
    record = taken_over(root, plan, other)
    try:
        _check_settings(root, plan, record)
    finally:
        _tidy(root, plan, keep=False)
    write_tuning(root, record)
    return record


def tune_study(root: Path, name: str, trials_per_row: int, seeds: Sequence[int], *, keep: bool = False) -> Record:
    """Runs the trials of a study that have not run; returns the record of all trials.

    Raises:
        RewardsmithError: a seed that is not of tuning, a study that was started, or one that was changed since its
            first trials.
        RunFailed: a stage failed.
    """
    plan, record = plan_and_record(root, name, trials_per_row, seeds)
    if missing_trials(record):
        tune(name, trials_per_row, tuple(seeds), keep, str(root))
        return record_to_continue(root, plan, seeds)
    _check_settings(root, plan, record)
    _tidy(root, plan, keep)
    return record


def _check_settings(root: Path, plan: TuningPlan, record: Record) -> None:
    """Refuses recorded trials of other settings. A digest leaves out the trial's point, so one trial of each row shows
    whether the row's other settings are as they were."""
    first_trials = [(row, 0) for row in record["rows"]]
    for seed in record["seeds"]:
        world = write_trial_world(root, plan, seed, first_trials)
        check_digests(record, seed, settings_digests(world, plan))


def _tidy(root: Path, plan: TuningPlan, keep: bool) -> None:
    """Removes the worlds' trees, unless they are to be kept."""
    if not keep:
        shutil.rmtree(root / WORK / plan.study, ignore_errors=True)


def tune_rows(
    name: str,
    trials: int | None = None,
    seeds: Sequence[int] = (),
    other: str | None = None,
    write: bool = False,
    keep: bool = False,
) -> str | None:
    """Tunes from the command line and prints the trials; see `tune`.

    Args:
        other: the study whose trials of the same rows are taken over first.
        write: put each row's best settings into the study's file.
    """
    root, taken = Path.cwd(), None if other is None else take_over_trials(Path.cwd(), name, other)
    trials = trials or (TRIALS if taken is None else trials_of(taken))
    seeds = seeds or (SEEDS if taken is None else taken["seeds"])
    record = tune_study(root, name, trials, seeds, keep=keep)
    rows = tuned_rows(record)
    print_tuning(rows, record)
    if not write:
        return None
    file = study_file(root, name)
    write_overrides(root, file, rows)
    return f"wrote each row's best settings into {file.name}"
