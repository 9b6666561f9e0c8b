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
from contextlib import closing
from pathlib import Path

from tasks.dvc.contents import damaged, forget
from tasks.dvc.stale import Look
from tasks.dvc.unofficial import exit_status, open_repo

OUTCOME_VARIABLE = "REWARDSMITH_OUTCOME"
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
            cached = all(map(Look(repo).restorable, repo.stage.collect(address)))
        done = repo.reproduce(address, single_item=True)
        if not done:
            return UNCHANGED
        if not cached:
            return RAN
        wrong = damaged(out for stage in done for out in stage.outs)
        if not wrong:
            return RESTORED
        for out in wrong:
            print(f"warning: the copy of {out} in DVC's cache is damaged and was removed; the stage runs", flush=True)
            forget(repo, out)
        repo.reproduce(address, single_item=True, force=True)
        return RAN


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
