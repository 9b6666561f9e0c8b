"""Flows of a study: tuning of its rows in worlds of tuning seeds, and the training of its worlds, which leave records.

The same command continues what was interrupted. Worlds run in a fixed order, so nobody can choose which of them
count. A world runs from committed code and settings; a pilot, on a seed reserved for tuning, never
counts and may run with uncommitted ones.

A world is one independent draw of all that is random, from one seed. A dial is a setting of data, a stage or a policy
that the study varies within each world, and a cell is one combination of levels of the dials. Twins are one row trained
twice in one world; a study of twins has seeds of its own. A trial of tuning is one row at one point, a value for each
setting of the search space; trials that are in reference/tuning/<study>.json are not run again. A world is trained in
its tree, a folder of .work/ with a DVC repository of its own (without git), which is deleted at the end, unless
`--keep`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger

from flows.scheduler import ENDED_WELL, RunFailed, RunSummary, run_stale
from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.commands.study import print_tuning
from tasks.params.studies import StudySpec, read_study, study_file
from tasks.running.commit import commit_of
from tasks.running.locks import only_one
from tasks.studies.best_trials import read_tuning, tuned_rows, write_overrides
from tasks.studies.plan import check_study
from tasks.studies.records import record_file, refuse_if_started, write_record
from tasks.studies.registration import Registration, check_tuning_seed, refuse_uncommitted_code, registration_of
from tasks.studies.tree import Trial, WorldTree, write_tree
from tasks.studies.trials import (
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
from tasks.studies.world_record import Divergence, diverged_stages, world_record

WORLDS, TRIALS = Path(".work") / "studies", Path(".work") / "tuning"
#: Each row runs as many trials before any row runs more, so that an interrupted tuning has as many trials of each row.
TRIALS_PER_ROUND = 4


def train_tree(world: WorldTree, label: str) -> tuple[RunSummary, dict[str, Divergence], RunFailed | None]:
    """Trains the rows of a tree; returns the outcomes, the stages that diverged by address, and the failure of a stage
    for another reason, if any. Call it inside a flow."""
    summary = run_stale(world.tree, world.pipelines)
    get_run_logger().info("%s: %s", label, summary.line())
    diverged = diverged_stages(summary.failed, summary.skipped, summary.failed_seconds)
    problems = [message for stage, message in summary.failed.items() if stage not in diverged]
    return summary, diverged, RunFailed(f"{label}: {summary.line()}. {'; '.join(problems)}") if problems else None


# --- worlds ------------------------------------------------------------------------------------------------------


def run_world(root: Path, registration: Registration, spec: StudySpec, seed: int, *, pilot: bool, keep: bool) -> Path:
    """Trains a world and writes its record; returns the record's file. Call it inside a flow. A row that diverged is
    recorded with its last evaluation before it did, if it had one.

    Args:
        pilot: whether it may run from uncommitted code and never counts.
        keep: keep the world's tree.

    Raises:
        RewardsmithError: another process trains the world, or it was finished meanwhile.
        RunFailed: a stage failed for a reason other than divergence.
    """
    world = WorldTree(registration.study, spec, seed, root / WORLDS / registration.study / str(seed))
    file = record_file(registration.study, seed, pilot=pilot)
    busy = f"world {seed} of study '{registration.study}' is being trained"
    with only_one(world.tree.with_suffix(".lock"), busy, f"Wait for it; its record will be in {file}"):
        if (root / file).exists():
            raise RewardsmithError(f"world {seed} of study '{registration.study}' was finished by another run: {file}")
        commit = commit_of(root)
        write_tree(root, world)
        _, diverged, failure = train_tree(world, f"world {seed}")
        if failure is not None:
            raise failure
        record = world_record(world, registration, commit, diverged, pilot=pilot)
        if not pilot:
            refuse_uncommitted_code(root)  # a change while it trained
        write_record(root, record)
        if not keep:
            shutil.rmtree(world.tree)
    return file


@flow(name="study", flow_run_name="study {registration.study}", persist_result=False, validate_parameters=False)
def train_worlds(
    root: Path, file: Path, registration: Registration, spec: StudySpec, seeds: Sequence[int], pilot: bool, keep: bool
) -> str:
    """Trains the worlds of some seeds; returns a line on the files of their records."""
    written = []
    for seed in seeds:
        if registration_of(root, file).digest != registration.digest:
            raise RecipeError(f"studies/{registration.study}.yaml was changed since this command began; start it again")
        written.append(str(run_world(root, registration, spec, seed, pilot=pilot, keep=keep)))
    ENDED_WELL.append(f"{registration.study}: wrote {', '.join(written)}; commit them: git add reference/studies")
    return ENDED_WELL[-1]


def study(name: str, worlds: int = 1, pilots: list[int] | None = None, keep: bool = False) -> str:
    """Trains the next worlds of a study, or its pilots on tuning seeds; returns a line on their records.

    Args:
        worlds: how many of the worlds that have no record.
        keep: keep the worlds' trees in .work/studies/, with weights.
    """
    root = Path.cwd()
    file = study_file(root, name)
    spec, registration = read_study(file), registration_of(root, file)
    if pilots:  # `write_tree` checks their rows and settings
        for seed in pilots:
            check_tuning_seed(seed)
    else:
        refuse_uncommitted_code(root)
        check_study(root, name, spec)
    every = pilots or [registration.world_seed(index) for index in range(spec.worlds)]
    without = [s for s in every if not (root / record_file(registration.study, s, pilot=bool(pilots))).exists()]
    if not without:
        return f"{registration.study}: {'these pilots have their records' if pilots else 'every world has its record'}"
    now = without if pilots else without[:worlds]
    written = train_worlds(root, file, registration, spec, now, bool(pilots), keep)
    left = f"; {len(without) - len(now)} of {spec.worlds} worlds left" if len(without) > len(now) else ""
    return written + left


# --- tuning ------------------------------------------------------------------------------------------------------


def write_trials(root: Path, plan: TuningPlan, record: Record, seed: int, trials: Sequence[Trial]) -> WorldTree:
    """Writes the tree of some trials in the world of a seed, over the tree of other trials, whose results stay.

    Raises:
        DataError: a row was changed since its first trials.
    """
    world = WorldTree(plan.study, plan.spec, seed, root / TRIALS / plan.study / str(seed), plan.points_of(trials))
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
    label = f"seed {seed}, trials {sorted({number for _, number in trials})}"
    summary, diverged, failure = train_tree(world, label)
    add_runs(record, world, commit_of(root), (*summary.skipped, *summary.failed), diverged)
    write_tuning(root, record)
    if failure is not None:
        raise failure


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
    ENDED_WELL.append(f"{name}: every trial has run; the same command prints the trials, and does what is left")


def tune_rows(name: str, trials: int, seeds: Sequence[int], write: bool = False, keep: bool = False) -> str | None:
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
        shutil.rmtree(root / TRIALS / plan.study, ignore_errors=True)
    rows = tuned_rows(record)
    print_tuning(rows, record)
    if not write:
        return None
    write_overrides(root, file, rows)
    return f"wrote each row's best settings into {file.name}"
