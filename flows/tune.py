"""Tuning of a study's rows: the same points for every row of a kind of optimiser, in worlds of tuning seeds.

    python -m flows.tune credit --trials 16 --seed 100 --seed 101
    python -m flows.tune credit --write          put the choices into studies/credit.yaml

A trial is one row at one point; a point is one value for each setting of the search space. Interrupted, the same
command continues; trials that are in reference/tuning/<study>.json are not run again.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger, tags

from flows.paper import end_on_signal, interrupted
from flows.run_notes import host_tag
from flows.scheduler import RunFailed, RunSummary, run_stale
from flows.working_tree import mark_processes_for_clean_up
from rlhf_core.errors import prints_errors
from tasks.commands.tuning_table import print_tuning
from tasks.params.studies import read_study, study_file
from tasks.running.commit import commit_of
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.trial_records import (
    Record,
    add_runs,
    check_digests,
    pending,
    read_tuning,
    record_to_continue,
    trials_of,
    tuning_file,
    write_tuning,
)
from tasks.studies.trials import Trial, TuningPlan, settings_digests, tuning_plan
from tasks.studies.tuned import check_not_started, tuned_rows, write_overrides
from tasks.studies.world_seeds import check_world_seed

WORK = Path(".work") / "tuning"
TRIALS, SEEDS = 16, (100,)
#: Trials of every row that run together, so that rows have the same number of trials wherever tuning is stopped.
TRIALS_TOGETHER = 4


def trial_world(root: Path, plan: TuningPlan, seed: int, trials: Sequence[Trial]) -> WorldTree:
    """Writes the tree of some trials in the world of a seed, over the tree of other trials, whose results stay."""
    world = WorldTree(plan.study, plan.trial_rows(trials), seed, root / WORK / plan.study / str(seed))
    write_tree(root, world)
    return world


def run_trials(root: Path, plan: TuningPlan, record: Record, seed: int, trials: Sequence[Trial]) -> None:
    """Trains trials in the world of a seed and writes what they gave. Call it inside a flow.

    Raises:
        DataError: a row was changed since its first trials.
        RunFailed: a stage failed for another reason than numbers that diverged.
    """
    world = trial_world(root, plan, seed, trials)
    digests = settings_digests(world, plan)
    check_digests(record, seed, digests)
    summary = run_stale(world.tree, world.pipelines)
    get_run_logger().info("seed %d, trials %s: %s", seed, sorted({number for _, number in trials}), summary.line())
    failed = {**summary.skipped, **summary.failed}
    problems = add_runs(record, world, digests, commit_of(root), failed, _seconds_of_failed(summary))
    write_tuning(root, record)
    if problems:
        raise RunFailed(f"seed {seed}: {summary.line()}. " + "; ".join(summary.failed.values() or problems))


def _seconds_of_failed(summary: RunSummary) -> dict[str, float]:
    """Returns core-seconds of failed stages by address."""
    ended = (time for time in summary.stage_times.stages if time.stage in summary.failed)
    return {time.stage: round(time.seconds * time.cores, 1) for time in ended}


def plan_and_record(root: Path, name: str, trials: int, seeds: Sequence[int]) -> tuple[TuningPlan, Record]:
    """Returns the plan of a study's trials, those that ran before included, and the record of those that ran.

    Raises:
        DataError: recorded trials are of other rows, cells or points.
        RecipeError: an unknown study, or a seed that is not of tuning.
    """
    for seed in seeds:
        check_world_seed(seed, pilot=True)
    file = study_file(root, name)
    known = trials_of(read_tuning(root, file.stem))
    plan = tuning_plan(root, file.stem, read_study(file), max(trials, known))
    return plan, record_to_continue(root, plan, seeds)


def missing_trials(record: Record) -> list[tuple[int, list[Trial]]]:
    """Returns the trials that have not run, in the order in which they run: some of every row, with each seed."""
    count = trials_of(record)
    groups = [range(first, min(first + TRIALS_TOGETHER, count)) for first in range(0, count, TRIALS_TOGETHER)]
    found = [(seed, pending(record, seed, numbers)) for numbers in groups for seed in record["seeds"]]
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
        seeds: of tuning.
        keep: leave the worlds' trees in .work/tuning/, weights included.
        root: the repository.
    """
    folder = Path(root).resolve()
    plan, record = plan_and_record(folder, name, trials, seeds)
    check_not_started(folder, plan.study)
    for seed, some in missing_trials(record):
        run_trials(folder, plan, record, seed, some)
    _tidy(folder, plan, keep)
    return f"{plan.study}: {trials_of(record)} trials of {len(plan.kinds)} rows are in {tuning_file(plan.study)}"


def tune_study(root: Path, name: str, trials: int, seeds: Sequence[int], *, keep: bool = False) -> Record:
    """Runs the trials of a study that have not run; returns the record of all.

    Raises:
        RewardsmithError: a seed that is not of tuning, a study that was started, or one that was changed since its
            first trials.
        RunFailed: a stage failed.
    """
    plan, record = plan_and_record(root, name, trials, seeds)
    if missing_trials(record):
        with tags(host_tag()):
            tune(name, trials, tuple(seeds), keep, str(root))
        return record_to_continue(root, plan, seeds)
    for seed in record["seeds"]:
        world = trial_world(root, plan, seed, [(row, 0) for row in plan.kinds])
        check_digests(record, seed, settings_digests(world, plan))
    _tidy(root, plan, keep)
    return record


def _tidy(root: Path, plan: TuningPlan, keep: bool) -> None:
    """Removes the worlds' trees, unless they are to be kept."""
    if not keep:
        shutil.rmtree(root / WORK / plan.study, ignore_errors=True)


@prints_errors
def main(arguments: Sequence[str] | None = None) -> int:
    """Tunes from the arguments; returns the exit status: 1 for a run that failed, 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m flows.tune", description=__doc__.split("\n")[0])
    parser.add_argument("name", help="the study, studies/<name>.yaml")
    parser.add_argument("--trials", type=int, default=TRIALS, metavar="N", help="points that each row is tried at")
    parser.add_argument("--seed", type=int, action="append", metavar="SEED", help="a tuning seed, 100 to 199")
    parser.add_argument("--write", action="store_true", help="put the choices into the study's file")
    parser.add_argument("--keep", action="store_true", help="leave the worlds' trees and weights")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, end_on_signal)
    root = Path.cwd()
    mark_processes_for_clean_up(root)
    try:
        record = tune_study(root, options.name, options.trials, options.seed or SEEDS, keep=options.keep)
    except KeyboardInterrupt:
        return interrupted()
    rows = tuned_rows(record)
    print_tuning(rows, record)
    if options.write:
        file = study_file(root, options.name)
        write_overrides(root, file, rows)
        print(f"wrote the choices into {file.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
