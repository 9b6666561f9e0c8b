"""Trains a study's worlds, each with every row of every cell, and writes a record for each world.

The same command continues an interrupted world. Worlds run in a fixed order, so nobody can choose which of them
count. A world runs from committed code and settings; a pilot, on a seed reserved for tuning, never
counts and may run with uncommitted ones.

A world is one independent draw of all that is random, from one seed. A dial is a setting of data, a stage or a policy
that the study varies within each world, and a cell is one combination of levels of the dials. Twins are one row trained
twice in one world; a study of twins has seeds of its own. A world is trained in its tree, a folder of .work/studies/
with a DVC repository of its own (without git), which is deleted once the world's record is written, unless `--keep`.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger

from flows.scheduler import RunFailed, run_stale
from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.params.studies import StudySpec, read_study, study_file
from tasks.running.commit import commit_of
from tasks.running.exclusive import only_one
from tasks.studies.plan import check_study
from tasks.studies.records import record_file, write_record
from tasks.studies.registration import Registration, check_tuning_seed, refuse_uncommitted_code, registration_of
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.world_record import diverged_stages, world_record

WORK = Path(".work") / "studies"


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
    world = WorldTree(registration.study, spec, seed, root / WORK / registration.study / str(seed))
    file = record_file(registration.study, seed, pilot=pilot)
    busy = f"world {seed} of study '{registration.study}' is being trained"
    with only_one(world.tree.with_suffix(".lock"), busy, f"Wait for it; its record will be in {file}"):
        if (root / file).exists():
            raise RewardsmithError(f"world {seed} of study '{registration.study}' was finished by another run: {file}")
        commit = commit_of(root)
        write_tree(root, world)
        summary = run_stale(world.tree, world.pipelines)
        get_run_logger().info("world %d: %s", seed, summary.line())
        diverged = diverged_stages(summary.failed, summary.skipped, summary.failed_seconds)
        if problems := [message for stage, message in summary.failed.items() if stage not in diverged]:
            raise RunFailed(f"world {seed}: {summary.line()}. " + "; ".join(problems))
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
) -> list[Path]:
    """Trains the worlds of some seeds; returns the files of their records."""
    written = []
    for seed in seeds:
        if registration_of(root, file).digest != registration.digest:
            raise RecipeError(f"studies/{registration.study}.yaml was changed since this command began; start it again")
        written.append(run_world(root, registration, spec, seed, pilot=pilot, keep=keep))
    return written


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
    return f"{registration.study}: wrote {', '.join(map(str, written))}; commit them: git add reference/studies{left}"
