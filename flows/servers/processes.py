"""The platform's processes: each noted in state.json, its output in a log file; and MLflow's databases."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.flow_runs import STARTED
from flows.servers.settings import HOST, PORTS, USER, Settings, inherited
from flows.working_tree import end_processes
from rlhf_core.errors import RewardsmithError
from tasks.running.fork_server import PROJECT
from tasks.running.platform_state import PLATFORM, SERVER, STATE, is_up, lives, read_private, write_private
from tasks.tracking.databases import mark_of, upgrade

#: Path that answers once a server is ready.
HEALTH = {"prefect": "/api/health", "mlflow": "/health"}
START_SECONDS = 300.0
#: The versions that MLflow's databases were prepared for.
PREPARED = "databases.json"
AUTH = """[mlflow]
default_permission = READ
database_uri = {database}
admin_username = {user}
admin_password = {password}
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
grant_default_workspace_access = false
auth_cache_ttl_seconds = 60
"""


def read_state(folder: Path) -> dict[str, Any]:
    """Returns host, ports and process ids as last noted."""
    return {"host": "", "ports": {}, "processes": {}, **read_private(folder / STATE)}


def start(settings: Settings, name: str) -> subprocess.Popen[bytes]:
    """Starts one process and notes it."""
    log = settings.folder / "logs" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = {**inherited(name, os.environ), **settings.environment(name)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PROJECT), os.environ.get("PYTHONPATH")]))
    environment |= {"PYTHONSAFEPATH": "1", SERVER: name}  # the project's packages, whatever is in the tree
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
    processes = read_state(settings.folder)["processes"] | {name: process.pid}
    write_private(settings.folder / STATE, note(settings) | {"processes": processes})
    return process


def note(settings: Settings) -> dict[str, Any]:
    """Returns what state.json has of a platform, with its processes as last noted."""
    return {**read_state(settings.folder), "host": settings.host, "ports": dict(settings.ports)}


def stop(folder: Path, name: str) -> bool:
    """Ends a server or the worker, also what outlived it and holds its port; returns whether it lived."""
    there, wanted, found = is_up(folder, name), (str(folder.resolve()), name), []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            of_server = (environment.get(PLATFORM), environment.get(SERVER)) == wanted
            if of_server and STARTED not in environment and lives(process):
                found.append(process)
    end_processes(found)
    return there


def answers(settings: Settings, name: str, timeout: float = 2.0) -> bool:
    """Returns whether a server's health page answers."""
    try:
        address = settings.url(name) + HEALTH[name]
        with httpx.stream("GET", address, auth=(USER, settings.password), timeout=timeout) as answer:
            return answer.is_success
    except httpx.HTTPError:
        return False


def wait_until_ready(settings: Settings, started: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Waits until servers just started answer.

    Raises:
        RewardsmithError: one ended, or does not answer in time, with the end of its log.
    """
    until = time.monotonic() + START_SECONDS
    for name, process in started.items():
        while not answers(settings, name):
            if process.poll() is not None:
                raise RewardsmithError(
                    f"the {name} server ended: {last_line(settings, name)}. Run `rewardsmith up` again: it continues "
                    "from here, on another port if this one is taken"
                )
            if time.monotonic() > until:
                raise RewardsmithError(f"the {name} server does not answer: {last_line(settings, name)}")
            time.sleep(0.2)


def last_line(settings: Settings, name: str) -> str:
    """Returns the last line of a process's log, and where the rest is."""
    path = settings.folder / "logs" / f"{name}.log"
    lines = path.read_text(encoding="utf-8", errors="replace").strip().splitlines() if path.exists() else []
    return f"{lines[-1] if lines else 'no output'} (log: {path})"


def choose_port(host: str, name: str, asked: int | None, before: int | None, others: Collection[int] = ()) -> int:
    """Returns the port asked for, else the one used before, else the usual one, else a free one.

    Args:
        others: ports of the other servers, which may not be bound yet.

    Raises:
        RewardsmithError: the port asked for is taken or for administrators, or the host is not this machine's.
    """
    for port in (asked, before, PORTS[name], 0):
        while port is not None and port not in others:
            with socket.socket() as tried:
                tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    tried.bind((host, port))
                except OSError as error:
                    if error.errno == errno.EADDRNOTAVAIL:
                        raise RewardsmithError(f"{HOST} is {host}, which is not an address of this machine") from None
                    break
                if (found := int(tried.getsockname()[1])) not in others:
                    return found
        if port and port == asked:
            raise RewardsmithError(f"port {port} for {name} is taken or not allowed. Choose another: --{name}-port N")
    raise AssertionError("a free port is found at last")


def prepare_mlflow(settings: Settings) -> bool:
    """Writes MLflow's login and brings its databases to the installed version; returns whether that was needed.

    It is done here, in one process: several first writers of one database crash.

    Raises:
        RewardsmithError: a database cannot be prepared.
    """
    text = AUTH.format(database=settings.database("auth"), user=USER, password=settings.password)
    (settings.folder / "mlflow-auth.ini").write_text(text)
    places = {name: settings.database(name) for name in ("mlflow", "auth")}
    marks = {name: mark_of("mlflow", place) for name, place in places.items()}
    files = {name: Path(place.removeprefix("sqlite:///")) for name, place in places.items()}
    new = {name: file for name, file in files.items() if not file.exists()}
    if "mlflow" not in new:
        files["mlflow"].chmod(0o600)  # it is outside the platform's folder
    if not new and read_private(settings.folder / PREPARED) == marks:
        return False
    # a new file gets its name when it is whole: a half-made one could not be upgraded
    for name, file in new.items():
        Path(f"{file}.new").unlink(missing_ok=True)
        Path(f"{file}.new").touch(mode=0o600)
        places[name] += ".new"
    if problem := upgrade(places, cwd=settings.folder, **settings.environment("mlflow")):
        shown = " and ".join(str(file) for file in files.values())
        raise RewardsmithError(f"MLflow cannot prepare its databases {shown}: {problem}")
    for file in new.values():
        Path(f"{file}.new").rename(file)
    write_private(settings.folder / PREPARED, marks)
    return True
