"""One stage by DVC, in a process of its own.

    python -m tasks.dvc.one_stage policy-segment-bandit-0

It does what `dvc repro --single-item` does, and compares what comes from DVC's cache with the record of the run that
made it. A damaged result is removed from the cache, and the stage runs. The exit status is that of the stage's command.
The file that REWARDSMITH_OUTCOME names, if any, receives how the stage ended: ran, restored or unchanged.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from tasks.dvc.cache_digests import damaged_outputs, drop_damaged_folder_lists, made_by_another_run, remove_with_cache
from tasks.dvc.internals import drop_foreign_runs, exit_status, newest_run, open_repo, run_key
from tasks.dvc.stale import Look

#: The variables that mark the processes of a stage, and name the file of its outcome.
MARK, OUTCOME_VARIABLE = "REWARDSMITH_STAGE", "REWARDSMITH_OUTCOME"
#: Ends of a stage.
RAN, RESTORED, UNCHANGED = "ran", "restored", "unchanged"
#: Exit status of an error of DVC's own, and EX_TEMPFAIL for a transient one.
DVC_FAILED, TEMPORARY = 255, 75


def reproduce(root: Path, address: str) -> str:
    """Brings one stage up to date; returns RAN, RESTORED or UNCHANGED.

    Args:
        root: the repository, which is the working directory.
        address: the stage as DVC names it.

    Raises:
        DvcException: the stage failed, or DVC refuses it.
    """
    with closing(open_repo(root)) as repo:
        repo.scm_context.quiet = True  # no advice to add dvc.lock to git, which would follow every stage
        with repo.lock:
            stages = repo.stage.collect(address)
            for stage in stages:
                _drop_unreadable(repo, stage)
            cached = all(map(Look(repo).restorable, stages))
            expected = {out.fs_path: out.hash_info for stage in stages for out in stage.outs}
        done = repo.reproduce(address, single_item=True)
        if not done:
            return UNCHANGED
        if not cached:
            return RAN
        outs = [out for stage in done for out in stage.outs]
        for out in outs:  # DVC took over the digest of whatever it found
            out.hash_info = expected[out.fs_path]
        wrong, foreign = damaged_outputs(outs), [out for out in outs if made_by_another_run(out)]
        if not wrong and not foreign:
            return RESTORED
        for out in wrong:
            print(f"warning: the copy of {out} in DVC's cache is damaged and was removed; the stage runs", flush=True)
            remove_with_cache(repo, out)
        for out in foreign:
            print(f"warning: {out} in DVC's cache is of another stage or of other inputs; the stage runs", flush=True)
        repo.reproduce(address, single_item=True, force=True)
        return RAN


def _drop_unreadable(repo: Any, stage: Any) -> None:
    """Removes what DVC would fail to read of a stage, or take for the stage's: damaged lists of folders' files, and
    entries of other runs in its place of the run cache."""
    from dvc.exceptions import DvcException
    from dvc.stage.serialize import to_single_stage_lockfile

    values = [str(part.hash_info.value) for part in (*stage.deps, *stage.outs) if part.hash_info]
    locked = [(dep, dep.hash_info, dep.meta) for dep in stage.deps]
    with suppress(DvcException):  # without its inputs a stage has no key, and DVC says which it lacks
        for dep in stage.deps:
            dep.save()
        key = run_key(to_single_stage_lockfile(stage))
        for file in drop_foreign_runs(repo, key):
            print(f"warning: {file.name} in DVC's run cache is not a run of {stage.addressing}; removed", flush=True)
        values += [str(out.get("md5", "")) for out in (newest_run(repo, key) or {}).get("outs", ())]
    for dep, hash_info, meta in locked:
        dep.hash_info, dep.meta = hash_info, meta
    if drop_damaged_folder_lists(repo, values):
        print(f"warning: a damaged list of files of {stage.addressing} was removed from DVC's cache", flush=True)


def ended(run: Callable[[], str]) -> int:
    """Calls what runs a stage, writes the outcome that it returns, and returns the exit status."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    outcome = os.environ.pop(OUTCOME_VARIABLE, "")
    try:
        how = run()
    except DvcException as error:
        cause = f": {error.__cause__}" if error.__cause__ else ""
        print(f"ERROR: {error}{cause}", file=sys.stderr)
        status = exit_status(error)
        return status if status is not None else TEMPORARY if isinstance(error, LockError) else DVC_FAILED
    if outcome:
        Path(outcome).write_text(how, encoding="utf-8")
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.dvc.one_stage", description="Runs one stage by DVC.")
    parser.add_argument("address", help="the stage, as DVC names it")
    options = parser.parse_args(arguments)
    return ended(lambda: reproduce(Path.cwd(), options.address))


if __name__ == "__main__":
    sys.exit(main())
