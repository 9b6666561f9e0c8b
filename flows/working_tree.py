"""The working tree: the processes that its runs started, and leftovers of killed ones.

What a run starts inherits a variable that names the run's process and tree. If the run is killed, whatever it left has
another parent, and the next run, `rewardsmith up` or `rewardsmith down` ends it.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

from tasks.dvc.internals import readable_lock
from tasks.running.platform_state import lives

WORK = ".work"
#: Names the process id of the run that started a process, and the run's tree.
RUN = "REWARDSMITH_RUN"


def mark(root: Path) -> dict[str, str]:
    """Returns the variable for the environment of processes that this one starts in a tree."""
    return {RUN: f"{os.getpid()} {root.resolve()}"}


def started_processes(root: Path) -> Iterator[tuple[psutil.Process, int]]:
    """Yields the living processes that runs of a tree, or of trees inside it, started, each with its run's id."""
    tree = root.resolve()
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            run, _, place = process.environ().get(RUN, "").partition(" ")
            if run.isdecimal() and Path(place).is_relative_to(tree) and lives(process):
                yield process, int(run)


def end_orphans(root: Path) -> list[str]:
    """Ends processes whose run was killed; returns what was done, in words. Those of a run that lives go on."""
    orphans = []
    for process, run in started_processes(root):
        with suppress(psutil.Error):
            if run not in {parent.pid for parent in process.parents()}:
                orphans.append(process)
    end_processes(orphans)
    return [f"ended {len(orphans)} process(es) of killed runs"] if orphans else []


def group_members(groups: Collection[int]) -> list[psutil.Process]:
    """Returns the living processes of process groups."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, PermissionError, psutil.Error):
            if os.getpgid(process.pid) in groups and lives(process):
                found.append(process)
    return found


def end_processes(processes: Collection[psutil.Process], grace_seconds: float = 10.0) -> None:
    """Ends processes: politely, then for good. Their exit statuses stay for whoever started them."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(kind)
        until = time.monotonic() + grace_seconds
        while processes := [process for process in processes if lives(process)]:
            if time.monotonic() > until:
                break
            time.sleep(0.1)


def clear_dead_locks(root: Path) -> bool:
    """Removes DVC's `.dvc/tmp/rwlock` unless a living process of DVC is in it; returns whether it did.

    DVC passes over dead processes itself, but not over a file that was cut, or a process id that is another's by now.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return False
    for pid in re.findall(r'"pid": (\d{1,9})\b', path.read_text(encoding="utf-8", errors="replace")):
        with suppress(psutil.Error):
            if any("dvc" in part for part in psutil.Process(int(pid)).cmdline()):
                return False
    path.unlink()
    return True


def set_aside_unreadable_locks(root: Path) -> list[Path]:
    """Moves each dvc.lock that DVC would not read to .work/set-aside, such as one whose writer was killed half-way or
    before its first byte; DVC rebuilds it from its run cache.
    """
    moved = []
    for path in [root / "dvc.lock", *(root / "pipelines").glob("*/*/dvc.lock")]:
        if os.path.lexists(path) and not readable_lock(path):
            name = path.relative_to(root)
            aside = root / WORK / "set-aside" / f"{name.as_posix().replace('/', '_')}-{time.time_ns()}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.rename(aside)
            moved.append(name)
    return moved


def tidy(root: Path) -> list[str]:
    """Brings a tree that was left by killed processes into order; returns what was done, in words."""
    done = end_orphans(root)
    if clear_dead_locks(root):
        done.append("removed DVC's locks of dead processes")
    done += [f"set the unreadable {path} aside (.work/set-aside)" for path in set_aside_unreadable_locks(root)]
    return done
