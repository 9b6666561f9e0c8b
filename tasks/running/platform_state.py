"""The platform of a working tree as its clients see it: the content of `.work/platform/`, and whether it runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

FOLDER = Path(".work") / "platform"
STATE, CLIENT = "state.json", "client.json"
PROC = Path("/proc")
#: Largest difference between two readings of one process's time of creation.
CREATED_SECONDS = 1.0


def write_private(path: Path, value: Any) -> None:
    """Writes JSON that only its owner may read (mode 0600), whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(json.dumps(value, indent=1) + "\n")
        partial.rename(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def read_private(path: Path) -> dict[str, Any]:
    """Its content; empty when it is not there or cut."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def identity(pid: int) -> dict[str, Any]:
    """Returns the identity of a process among all with the same id: the boot, and its start in ticks since the boot.

    Setting the clock changes neither. Without /proc it is the time of the process's creation.

    Raises:
        psutil.NoSuchProcess: the process has ended.
        psutil.AccessDenied: it is another user's, on a system that hides these.
    """
    boot = boot_id()
    if boot is None:
        return {"created": psutil.Process(pid).create_time()}
    try:
        fields = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        raise psutil.NoSuchProcess(pid) from None
    except PermissionError:
        raise psutil.AccessDenied(pid) from None
    return {"boot": boot, "started": int(fields[19])}


def boot_id() -> str | None:
    """Returns the id of the system's present boot; None where there is no /proc."""
    try:
        return (PROC / "sys" / "kernel" / "random" / "boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return None


def note_of(pid: int) -> dict[str, Any]:
    """Returns a process as `alive` reads it."""
    return {"pid": pid, **identity(pid)}


def is_same_process(note: Mapping[str, Any]) -> bool:
    """Returns whether the process that has a note's id is the noted one, alive or not yet waited for.

    A note with the time of creation alone (no /proc, or an earlier version's) is compared within a second.

    Raises:
        psutil.NoSuchProcess: no process has the id.
    """
    pid = int(note["pid"])
    if "started" in note:
        try:
            return all(note.get(name) == value for name, value in identity(pid).items())
        except psutil.AccessDenied:
            return False
    return abs(psutil.Process(pid).create_time() - float(note["created"])) < CREATED_SECONDS


def alive(note: Mapping[str, Any] | None) -> bool:
    """Returns whether a noted process still runs; a reused process id does not count."""
    try:
        return is_same_process(note or {}) and psutil.Process(int((note or {})["pid"])).status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False


def read_processes(folder: Path) -> dict[str, Any]:
    """Returns the platform's processes by name, as last noted in its folder."""
    found = read_private(folder / STATE).get("processes", {})
    return found if isinstance(found, dict) else {}


def client_environment(root: Path) -> dict[str, str]:
    """Returns the environment variables of a client of the tree's platform; empty while the platform is down."""
    processes = read_processes(root / FOLDER)
    if not all(alive(processes.get(name)) for name in ("prefect", "mlflow")):
        return {}
    return {str(name): str(value) for name, value in read_private(root / FOLDER / CLIENT).items()}


def join_platform(root: Path) -> bool:
    """Lets this process and its children speak to the tree's platform, unless other addresses are set.

    Returns:
        whether there is one.
    """
    environment = client_environment(root)
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    return bool(environment)
