"""The working tree: owners of the processes that run in it, and leftovers of killed processes."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tasks.dvc.lock_files import readable_lock, readable_text
from tasks.dvc.one_stage import MARK
from tasks.dvc.stale import cache_folder
from tasks.params.yaml_files import write_whole
from tasks.running.platform_state import alive, note_of

WORK = ".work"
#: Variable that names the run which started a process, of a run without a platform.
RUN = "REWARDSMITH_RUN"
#: Variable that Prefect sets for the temporary server of a run without a platform.
TEMPORARY = "PREFECT__SERVER_EPHEMERAL"
#: Errors of a text that is not a note: any process of the machine may have set such a variable.
NOT_A_NOTE = (ValueError, KeyError, TypeError, RecursionError)


def mark(root: Path, name: str) -> dict[str, str]:
    """Returns the variable of a stage's process, inherited by its children, that names the run it belongs to.

    Args:
        root: the tree that it works in.
        name: the stage as a file name.
    """
    return {MARK: json.dumps({"root": str(root.resolve()), "stage": name, **note_of(os.getpid())})}


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


def marked_groups(root: Path) -> dict[int, dict[str, Any]]:
    """Returns the process groups of the stages that run in a tree, each with its mark, whoever started them."""
    found: dict[int, dict[str, Any]] = {}
    for process in psutil.process_iter():
        try:
            text = process.environ().get(MARK, "").strip()  # blank in a run's fork server
            if not text or process.status() == psutil.STATUS_ZOMBIE:
                continue
            note, group = json.loads(text), _group(process.pid)
            of_this_tree = note["root"] == str(root.resolve())
        except (psutil.Error, OSError, *NOT_A_NOTE):
            continue
        if of_this_tree and group is not None and group != os.getpgid(0):
            found[group] = note
    return found


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


def group_memory_gb(pid: int) -> float:
    """Returns the GiB that the processes of a group hold; pages that several processes share count once (on Linux)."""
    total = 0
    for process in psutil.process_iter():
        try:
            if _group(process.pid) == pid:
                total += _held(process)
        except psutil.Error:
            continue
    return total / 2**30


def _held(process: psutil.Process) -> int:
    """Returns the bytes of memory of a process: its proportional set size, its resident set where that is unknown."""
    try:
        return int(process.memory_full_info().pss)
    except (AttributeError, psutil.AccessDenied):
        return int(process.memory_info().rss)


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
    orphans = {group: note for group, note in marked_groups(root).items() if not alive(note)}
    for group in orphans:
        end_group(group)
    names = sorted({str(note["stage"]) for note in orphans.values()})
    servers = _end_temporary_servers(root)
    ended = [f"ended stage {name}, left running by a killed flow" for name in names]
    return ended + ([f"ended {servers} temporary server(s) of killed runs"] if servers else [])


def _alive_dvc(pid: int) -> bool:
    try:
        return any("dvc" in part for part in psutil.Process(pid).cmdline())
    except psutil.Error:
        return False


#: Of each kind of DVC's locks: many processes may read a file, one writes it.
OF_MODE: dict[str, type] = {"read": list, "write": dict}


def _is_holder(holder: Any) -> bool:
    """Returns whether a value is a process as DVC writes it into its locks."""
    kinds = {name: type(value) for name, value in holder.items()} if isinstance(holder, dict) else {}
    return kinds == {"pid": int, "cmd": str} and 0 <= holder["pid"] < 2**31


def clear_dead_locks(root: Path) -> int:
    """Removes entries of dead processes from DVC's `.dvc/tmp/rwlock`, an unreadable one as a whole.

    Returns:
        how many entries were removed.
    """
    path = root / ".dvc" / "tmp" / "rwlock"
    if not path.exists():
        return 0
    try:
        locks: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        entries = [
            (mode, file, holder)
            for mode, files in locks.items()
            for file, holders in files.items()
            for holder in (holders if isinstance(holders, list) else [holders])
        ]
        kinds = {(mode, type(holders)) for mode, files in locks.items() for holders in files.values()}
        whole = locks.keys() <= OF_MODE.keys() and kinds <= OF_MODE.items()
    except (*NOT_A_NOTE, AttributeError):
        entries, whole = [], False
    if not whole or not all(_is_holder(holder) for _, _, holder in entries):
        path.unlink()
        return 1
    dead = [entry for entry in entries if not _alive_dvc(entry[2]["pid"])]
    for mode, file, holder in dead:
        if isinstance(locks[mode][file], list):
            locks[mode][file].remove(holder)
        if holder == locks[mode][file] or not locks[mode][file]:
            del locks[mode][file]
    if dead:
        write_whole(path, json.dumps(locks))
    return len(dead)


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


def set_aside_damaged_runs(root: Path) -> int:
    """Moves entries of DVC's run cache that DVC could not read past to .work/set-aside; DVC passes over other damage.

    Returns:
        how many were moved.
    """
    if not (root / ".dvc").is_dir():
        return 0
    runs, moved = cache_folder(root) / "runs", 0
    for key in runs.glob("*/*"):
        for entry in [*key.iterdir()] if key.is_dir() else [key]:
            if not readable_text(entry):
                aside = root / WORK / "set-aside" / f"run-{entry.name}-{time.time_ns()}"
                aside.parent.mkdir(parents=True, exist_ok=True)
                entry.rename(aside)
                moved += 1
    return moved


def tidy(root: Path) -> list[str]:
    """Brings a tree that was left by killed processes into order; returns what was done, in words."""
    done = end_orphans(root)
    removed = clear_dead_locks(root)
    if removed:
        done.append(f"removed {removed} DVC lock(s) of dead processes")
    done += [f"set the unreadable {path} aside (.work/set-aside)" for path in set_aside_unreadable_locks(root)]
    if damaged := set_aside_damaged_runs(root):
        done.append(f"set {damaged} damaged entries of DVC's run cache aside (.work/set-aside)")
    return done
