"""The platform's processes: each in a group of its own, noted in state.json, its output in a log file."""

from __future__ import annotations

import base64
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from flows.servers.settings import USER, Settings, inherited
from flows.working_tree import end_group
from rlhf_core.errors import RewardsmithError
from tasks.running.platform_state import (
    STATE,
    alive,
    boot_id,
    is_same_process,
    note_of,
    read_private,
    read_processes,
    write_private,
)

#: Path that answers once a server is ready.
HEALTH = {"prefect": "/api/health", "mlflow": "/health", "page": "/health"}
#: The worker goes first when the platform stops: one without a server tries again for minutes.
STOPPING = ("worker", "page", "mlflow", "prefect")
START_SECONDS = 300.0


def read_state(folder: Path) -> dict[str, Any]:
    """Ports and processes as last noted."""
    ports = read_private(folder / STATE).get("ports", {})
    return {"ports": ports if isinstance(ports, dict) else {}, "processes": read_processes(folder)}


def start(settings: Settings, name: str) -> subprocess.Popen[bytes]:
    """Starts one process and notes it."""
    log = settings.folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**inherited(name, os.environ), **settings.environment(name)}
    environment.pop("REWARDSMITH_DATABASE", None)  # its password is in what the servers get
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [project(), os.environ.get("PYTHONPATH")]))
    environment["PYTHONSAFEPATH"] = "1"  # the project's packages, whatever is in the tree
    if name == "prefect":
        environment.pop("PREFECT_API_URL", None)
    with log.open("ab") as out:
        process = subprocess.Popen(
            settings.commands()[name],
            cwd=settings.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    log.chmod(0o600)
    state = read_state(settings.folder)
    state["ports"] = dict(settings.ports)
    state["processes"][name] = note_of(process.pid)
    write_private(settings.folder / STATE, state)
    return process


def project() -> str:
    """Returns the folder of the packages tasks and flows."""
    return str(Path(__file__).resolve().parents[2])


def answers(settings: Settings, name: str, timeout: float = 2.0) -> bool:
    """Returns whether a server's health page answers."""
    request = urllib.request.Request(settings.url(name) + HEALTH[name], headers=authorization(settings))
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def authorization(settings: Settings) -> dict[str, str]:
    """Returns the header of basic authentication."""
    word = base64.b64encode(f"{USER}:{settings.password}".encode()).decode()
    return {"Authorization": f"Basic {word}"}


def wait_until_ready(settings: Settings, started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Waits until servers just started answer.

    Raises:
        RewardsmithError: one ended, or does not answer in time, with the end of its log.
    """
    until = time.monotonic() + START_SECONDS
    left = [name for name in started if name in HEALTH]
    while left:
        for name in list(left):
            if started[name].poll() is not None:
                raise RewardsmithError(
                    f"the {name} server ended: {last_line(settings, name)}. Run `rewardsmith up` again: it continues "
                    "from here, on another port if this one is taken"
                )
            if answers(settings, name):
                left.remove(name)
        if left and time.monotonic() > until:
            raise RewardsmithError(f"the {left[0]} server does not answer: {last_line(settings, left[0])}")
        time.sleep(0.2)


def last_line(settings: Settings, name: str) -> str:
    """Returns the last line of a process's log, and where the rest is."""
    path = settings.folder / "logs" / f"{name}.log"
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return f"{lines[-1] if lines else 'no output'} (log: {path})"


def stop(folder: Path, name: str) -> bool:
    """Ends a noted process and all its group; returns whether it was alive."""
    state = read_state(folder)
    note = state["processes"].pop(name, None)
    there = alive(note)
    if there or (name in HEALTH and survivors(note)):
        end_group(int(note["pid"]))
    if note is not None:
        write_private(folder / STATE, state)
    return there


def survivors(note: Mapping[str, Any] | None) -> list[int]:
    """Returns processes that outlived the noted leader of their session; a server's would keep its port."""
    if not note or alive(note):
        return []
    if note.get("boot") not in (None, boot_id()):
        return []
    with suppress(psutil.NoSuchProcess):
        if not is_same_process(note):
            return []  # the id is another process's by now
    return [pid for pid in psutil.pids() if _session(pid) == int(note["pid"]) and pid != int(note["pid"])]


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return None
