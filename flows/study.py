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
from typing import Any

from prefect import flow, get_run_logger

from flows.scheduler import RunFailed, run_stale
from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.params.studies import StudySpec, read_study, study_file
from tasks.running.commit import commit_of
from tasks.running.exclusive import only_one
from tasks.studies.plan import check_study
from tasks.studies.records import write_record
from tasks.studies.registration import (
    Registration,
    check_tuning_seed,
    record_file,
    refuse_uncommitted_code,
    registration_of,
)
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.world_record import diverged_stages, world_record

WORK = Path(".work") / "studies"


def run_world(root: Path, registration: Registration, spec: StudySpec, seed: int, *, pilot: bool, keep: bool) -> Path:
    """Trains a world and writes its record; returns the record's file. Call it inside a flow.

    Args:
        root: the repository.
        registration: of the study.
        spec: the study.
        seed: of the world.
        pilot: whether it is a pilot, which may run from uncommitted code and never counts.
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
        record = _train(world, registration, commit, pilot=pilot)
        if not pilot:
            refuse_uncommitted_code(root)  # a change while it trained
        write_record(root, record)
        if not keep:
            shutil.rmtree(world.tree)
    return file


def _train(world: WorldTree, registration: Registration, commit: str, *, pilot: bool) -> dict[str, Any]:
    """Trains a world; returns its record. A row that diverged is recorded with its last evaluation before it did, if it
    had one.

    Raises:
        RunFailed: a stage failed for a reason other than divergence.
    """
    summary = run_stale(world.tree, world.pipelines)
    get_run_logger().info("world %d: %s", world.seed, summary.line())
    seconds = {time.stage: time.seconds for time in summary.stage_times.stages if time.stage in summary.failed}
    diverged = diverged_stages(summary.failed, summary.skipped, seconds)
    if problems := [message for stage, message in summary.failed.items() if stage not in diverged]:
        raise RunFailed(f"world {world.seed}: {summary.line()}. " + "; ".join(problems))
    return world_record(world, registration, commit, diverged, pilot=pilot)


@flow(
    name="study",
    description="Trains the next worlds of a registered study.",
    flow_run_name="study {name}",
    persist_result=False,
)
def study(name: str, worlds: int = 1, pilots: list[int] | None = None, keep: bool = False, root: str = ".") -> str:
    """Trains the next worlds of a study.

    Args:
        name: of the study, studies/<name>.yaml.
        worlds: how many of the worlds that have no record.
        pilots: tuning seeds to run as pilots instead (`--pilot`).
        keep: keep the worlds' trees in .work/studies/, with weights.
        root: the repository.
    """
    folder = Path(root).resolve()
    file = study_file(folder, name)
    spec, registration = read_study(file), registration_of(folder, file)
    if pilots:  # `write_tree` checks their rows and settings
        for seed in pilots:
            check_tuning_seed(seed)
    else:
        refuse_uncommitted_code(folder)
        check_study(folder, name, spec)
    every = pilots or [registration.world_seed(index) for index in range(spec.worlds)]
    seeds = [
        seed for seed in every if not (folder / record_file(registration.study, seed, pilot=bool(pilots))).exists()
    ]
    if not seeds:
        return f"{registration.study}: {'these pilots have their records' if pilots else 'every world has its record'}"
    now, written = seeds if pilots else seeds[:worlds], []
    for seed in now:
        if registration_of(folder, file).digest != registration.digest:
            raise RecipeError(f"studies/{registration.study}.yaml was changed since this command began; start it again")
        written.append(run_world(folder, registration, spec, seed, pilot=bool(pilots), keep=keep))
    return records_written(registration.study, written, without_record=len(seeds) - len(now), worlds=spec.worlds)


def records_written(study: str, files: Sequence[Path], *, without_record: int, worlds: int) -> str:
    """Returns the line that says which records were written, and how many of a study's worlds are left."""
    text = f"{study}: wrote {', '.join(map(str, files))}; commit them: git add reference/studies"
    return f"{text}; {without_record} of {worlds} worlds left" if without_record else text
