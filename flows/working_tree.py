"""The working tree: owners of the processes that run in it, and leftovers of killed processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tasks.dvc.internals import readable_lock
from tasks.running.platform_state import alive, boot_id, is_same_process, note_of, read_private, write_private

WORK, RUNNING = ".work", "running"
#: Variable that names the run which started a process, of a run without a platform.
RUN = "REWARDSMITH_RUN"
#: Variable that Prefect sets for the temporary server of a run without a platform.
TEMPORARY = "PREFECT__SERVER_EPHEMERAL"
#: Errors of a text that is not a note: any process of the machine may have set such a variable.
NOT_A_NOTE = (ValueError, KeyError, TypeError, RecursionError)


@contextmanager
def noted_group(root: Path, name: str, pid: int) -> Iterator[None]:
    """Notes a process group in `.work/running` within the block, so that one whose run was killed is found and ended.

    Args:
        root: the tree that it works in.
        name: the stage as a file name.
        pid: leader of the group.
    """
    note = root / WORK / RUNNING / f"{name}.json"
    with suppress(psutil.NoSuchProcess):  # it has ended already
        write_private(note, {"stage": name, "group": note_of(pid), "owner": note_of(os.getpid())})
    try:
        yield
    finally:
        note.unlink(missing_ok=True)


def mark_processes_for_clean_up(root: Path) -> None:
    """Marks the processes that this one starts from now on: if this one is killed, the clean-up of a later run (`tidy`)
    finds and ends those left over.

    Args:
        root: the tree that this process works in.
    """
    os.environ[RUN] = json.dumps({"root": str(root.resolve()), **note_of(os.getpid())})


def _end_temporary_servers(root: Path) -> int:
    """Ends Prefect's servers whose run was killed. A server is in the group of its run's terminal or script, so that it
    is ended alone."""
    ended = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError, *NOT_A_NOTE):
            environment = process.environ()
            if environment.get(TEMPORARY) and (text := environment.get(RUN)):
                note = json.loads(text)
                if note["root"] == str(root.resolve()) and not alive(note):
                    process.terminate()
                    ended += 1
    return ended


def running_groups(root: Path) -> dict[int, dict[str, Any]]:
    """Returns the living process groups that are noted in a tree, each with its note."""
    notes = map(read_private, (root / WORK / RUNNING).glob("*.json"))
    return {int(note["group"]["pid"]): note for note in notes if note and group_lives(note["group"])}


def group_lives(leader: Mapping[str, Any]) -> bool:
    """Returns whether a noted group has living processes; no other process gets its id while it has."""
    if leader.get("boot") not in (None, boot_id()):
        return False
    with suppress(psutil.NoSuchProcess):
        if not is_same_process(leader):
            return False
    pid = int(leader["pid"])
    return any(_group(p.pid) == pid and p.status() != psutil.STATUS_ZOMBIE for p in psutil.process_iter())


def end_group(pid: int, *, grace_seconds: float = 10.0) -> None:
    """Ends a process group: politely, then for good."""
    for kind in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(pid, kind)
        except ProcessLookupError:
            return
        until = time.monotonic() + grace_seconds
        while time.monotonic() < until:
            try:
                members = [p for p in psutil.process_iter(["pid"]) if _group(p.pid) == pid]
                if all(p.status() == psutil.STATUS_ZOMBIE for p in members):
                    return
            except psutil.NoSuchProcess:
                pass
            time.sleep(0.1)


def _group(pid: int) -> int | None:
    """Returns a process's group; None for one whose leader is outside this container, where every signal to 0 is one's
    own."""
    try:
        return os.getpgid(pid) or None
    except (ProcessLookupError, PermissionError):
        return None


def end_orphans(root: Path) -> list[str]:
    """Ends stages and temporary servers whose flow was killed; returns what was done, in words. Those of a flow that
    lives go on."""
    orphans = {group: note for group, note in running_groups(root).items() if not alive(note["owner"])}
    for group in orphans:
        end_group(group)
    for path in (root / WORK / RUNNING).glob("*.json"):
        if not alive(read_private(path).get("owner")):
            path.unlink(missing_ok=True)
    names = sorted({str(note["stage"]) for note in orphans.values()})
    servers = _end_temporary_servers(root)
    ended = [f"ended stage {name}, left running by a killed flow" for name in names]
    return ended + ([f"ended {servers} temporary server(s) of killed runs"] if servers else [])


def clear_dead_locks(root: Path) -> bool:
    """Removes DVC's `.dvc/tmp/rwlock` unless a living process of DVC is in it; returns whether it did.

    DVC passes over dead processes itself, but not over a file that was cut, or a process id that is another's by now.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    try:
        locks = json.loads(path.read_text(encoding="utf-8"))
        holders = [found for files in locks.values() for found in files.values()]
        pids = {int(one["pid"]) for found in holders for one in (found if isinstance(found, list) else [found])}
    except FileNotFoundError:
        return False
    except (*NOT_A_NOTE, AttributeError):
        pids = set()
    if any(_alive_dvc(pid) for pid in pids):
        return False
    path.unlink()
    return True


def _alive_dvc(pid: int) -> bool:
    try:
        return any("dvc" in part for part in psutil.Process(pid).cmdline())
    except (psutil.Error, OverflowError):
        return False


def set_aside_unreadable_locks(root: Path) -> list[Path]:
    """Moves each dvc.lock that DVC would not read to .work/set-aside, such as one whose writer was killed half-way or
    before its first byte; DVC rebuilds it from its run cache.
    """
    moved = []
    for path in [root / "dvc.lock", *(root / "pipelines").glob("*/*/dvc.lock")]:
        if os.path.lexists(path) and not readable_lock(path):
            aside = (
                root / WORK / "set-aside" / f"{path.relative_to(root).as_posix().replace('/', '_')}-{time.time_ns()}"
            )
            aside.parent.mkdir(parents=True, exist_ok=True)
            path.rename(aside)
            moved.append(path.relative_to(root))
    return moved


def tidy(root: Path) -> list[str]:
    """Brings a tree that was left by killed processes into order; returns what was done, in words."""
    done = end_orphans(root)
    if clear_dead_locks(root):
        done.append("removed DVC's locks of dead processes")
    done += [f"set the unreadable {path} aside (.work/set-aside)" for path in set_aside_unreadable_locks(root)]
    return done
