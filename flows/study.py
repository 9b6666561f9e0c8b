"""A study's worlds: each is trained whole, every row of every cell, and leaves its record.

    python -m flows.study credit --worlds 2     the next two worlds of studies/credit.yaml
    python -m flows.study credit --pilot 100    a pilot, with a seed of tuning

A world may be interrupted: the same command goes on with it. Worlds are run in their order, so that stopping anywhere
chooses nothing.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from prefect import flow, get_run_logger, tags

from flows.paper import _end
from flows.run_notes import host_tag
from flows.scheduler import RunFailed, run_stale
from flows.working_tree import mark_run
from rlhf_core.errors import RewardsmithError
from tasks.params.studies import StudySpec, read_study, study_file
from tasks.studies.records import record_of, write_record
from tasks.studies.registration import (
    Registration,
    check_unchanged,
    note_start,
    record_file,
    registration,
)
from tasks.studies.tree import WorldTree, write_tree
from tasks.studies.world_seeds import check_world_seed

WORK = Path(".work") / "studies"


def run_world(root: Path, own: Registration, spec: StudySpec, number: int, *, pilot: bool, keep: bool) -> Path:
    """Trains one world and writes its record; returns the record's file. Call it inside a flow.

    Raises:
        RunFailed: a stage failed.
    """
    log, world = get_run_logger(), WorldTree(own.study, spec, number, root / WORK / own.study / str(number))
    write_tree(root, world)
    summary = run_stale(world.tree, world.pipelines)
    log.info("world %d: %s", number, summary.line())
    if summary.failed:
        raise RunFailed(f"world {number}: {summary.line()}. " + "; ".join(summary.failed.values()))
    file = write_record(root, record_of(world, own, pilot=pilot))
    if not keep:
        shutil.rmtree(world.tree)
    return file


@flow(name="study", description="Trains the next worlds of a registered study.", persist_result=False)
def study(name: str, worlds: int = 1, pilots: list[int] | None = None, keep: bool = False, root: str = ".") -> str:
    """Trains the next worlds of a study.

    Args:
        name: of the study, studies/<name>.yaml.
        worlds: how many of those that have no record.
        pilots: seeds of tuning to run instead.
        keep: leave the worlds' trees in .work/studies/, weights included.
        root: the repository.
    """
    folder = Path(root).resolve()
    file = study_file(folder, name)
    spec, own = read_study(file), registration(folder, file)
    check_unchanged(folder, own)
    if pilots:
        numbers = [number for number in pilots if not (folder / record_file(own.study, number, pilot=True)).exists()]
    else:
        every = [own.world(index) for index in range(spec.worlds)]
        numbers = [number for number in every if not (folder / record_file(own.study, number)).exists()][:worlds]
    for number in numbers:
        check_world_seed(number, pilot=bool(pilots))
    if not numbers:
        return f"{own.study}: every world has its record"
    note_start(folder, own, numbers, "pilot" if pilots else "verdict")
    made = [run_world(folder, own, spec, number, pilot=bool(pilots), keep=keep) for number in numbers]
    return f"{own.study}: wrote {', '.join(map(str, made))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the flow from its arguments; returns the exit status: 1 for a run that failed, 2 for a user's error."""
    parser = argparse.ArgumentParser(prog="python -m flows.study", description=__doc__.split("\n")[0])
    parser.add_argument("name", help="the study, studies/<name>.yaml")
    parser.add_argument("--worlds", type=int, default=1, metavar="N", help="how many worlds without a record")
    parser.add_argument("--pilot", type=int, nargs="+", default=[], metavar="SEED", help="seeds of tuning instead")
    parser.add_argument("--keep", action="store_true", help="leave the worlds' trees and weights")
    options = parser.parse_args(arguments)
    if options.worlds < 1:
        parser.error(f"--worlds is {options.worlds}; it must be at least 1")
    signal.signal(signal.SIGTERM, _end)
    mark_run(Path.cwd())
    try:
        with tags(host_tag()):
            print(study(options.name, options.worlds, options.pilot, options.keep))
    except RunFailed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
