"""Tuning of a study's rows: the same points for every row of a kind of optimiser, in worlds of tuning seeds.

A trial is one row at one point; a point is one value for each setting of the search space. The same command continues
an interrupted tuning; trials that are in reference/tuning/<study>.json are not run again.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger

from flows.scheduler import RunFailed, run_stale
from tasks.commands.study import print_tuning
from tasks.params.studies import read_study, study_file
from tasks.running.commit import commit_of
from tasks.studies.records import refuse_if_started
from tasks.studies.registration import check_tuning_seed
from tasks.studies.tree import Trial, WorldTree, write_tree
from tasks.studies.tuned import read_tuning, tuned_rows, write_overrides
from tasks.studies.tuning import (
    Record,
    TuningPlan,
    add_runs,
    check_settings,
    pending,
    record_to_continue,
    trials_of,
    tuning_plan,
    write_tuning,
)
from tasks.studies.world_record import diverged_stages

WORK = Path(".work") / "tuning"
TRIALS, SEEDS = 16, (100,)
#: Each row runs as many trials before any row runs more, so that an interrupted tuning has as many trials of each row.
TRIALS_PER_ROUND = 4


def write_trials(root: Path, plan: TuningPlan, record: Record, seed: int, trials: Sequence[Trial]) -> WorldTree:
    """Writes the tree of some trials in the world of a seed, over the tree of other trials, whose results stay.

    Raises:
        DataError: a row was changed since its first trials.
    """
    world = WorldTree(plan.study, plan.spec, seed, root / WORK / plan.study / str(seed), plan.points_of(trials))
    write_tree(root, world)
    check_settings(record, world)
    return world


def run_trials(root: Path, plan: TuningPlan, record: Record, seed: int, trials: Sequence[Trial]) -> None:
    """Trains trials in the world of a seed and writes their results into the record's file. Call it inside a flow.

    Raises:
        DataError: a row was changed since its first trials.
        RunFailed: a stage failed for a reason other than divergence.
    """
    world = write_trials(root, plan, record, seed, trials)
    summary = run_stale(world.tree, world.pipelines)
    get_run_logger().info("seed %d, trials %s: %s", seed, sorted({number for _, number in trials}), summary.line())
    diverged = diverged_stages(summary.failed, summary.skipped, summary.failed_seconds)
    add_runs(record, world, commit_of(root), (*summary.skipped, *summary.failed), diverged)
    write_tuning(root, record)
    if problems := [message for stage, message in summary.failed.items() if stage not in diverged]:
        raise RunFailed(f"seed {seed}: {summary.line()}. " + "; ".join(problems))


def missing_trials(record: Record) -> list[tuple[int, list[Trial]]]:
    """Returns the trials that have not run, with their seed, in the order in which they run: round by round."""
    count = trials_of(record)
    rounds = [range(first, min(first + TRIALS_PER_ROUND, count)) for first in range(0, count, TRIALS_PER_ROUND)]
    found = [(seed, pending(record, seed, numbers)) for numbers in rounds for seed in record["seeds"]]
    return [(seed, trials) for seed, trials in found if trials]


@flow(name="tune", flow_run_name="tune {name}", persist_result=False, validate_parameters=False)
def tune(name: str, plan: TuningPlan, record: Record, root: Path) -> None:
    """Runs the trials of a study that have not run, and adds them to the record."""
    for seed, missing in missing_trials(record):
        run_trials(root, plan, record, seed, missing)


def tune_rows(
    name: str,
    trials: int = TRIALS,
    seeds: Sequence[int] = SEEDS,
    write: bool = False,
    keep: bool = False,
) -> str | None:
    """Runs the trials of a study that have not run, and prints all.

    Args:
        trials: number of points that each row is tried at.
        seeds: tuning seeds; each trial runs with each of them.
        write: put each row's best settings into the study's file.
        keep: keep the worlds' trees in .work/tuning/, weights included.

    Raises:
        RewardsmithError: an unknown study, one that was started or changed since its first trials, or a seed that is
            not of tuning.
        RunFailed: a stage failed.
    """
    root = Path.cwd()
    file = study_file(root, name)
    plan = tuning_plan(root, file.stem, read_study(file), max(trials, trials_of(read_tuning(root, file.stem))))
    for seed in seeds:
        check_tuning_seed(seed)
    record = record_to_continue(root, plan, seeds)
    if missing_trials(record):
        refuse_if_started(root, plan.study)
        tune(plan.study, plan, record, root)
    else:  # a digest leaves out the trial's point: one trial of each row shows whether its other settings changed
        for own in record["seeds"]:
            write_trials(root, plan, record, own, [(row, 0) for row in record["rows"]])
    if not keep:
        shutil.rmtree(root / WORK / plan.study, ignore_errors=True)
    rows = tuned_rows(record)
    print_tuning(rows, record)
    if not write:
        return None
    write_overrides(root, file, rows)
    return f"wrote each row's best settings into {file.name}"
