"""Starts and stops the platform of this working tree.

python -m flows.servers up      starts what is not running, repairs what killed processes left
python -m flows.servers down    stops it: worker first
python -m flows.servers status  says what runs
"""

from __future__ import annotations

import argparse
import errno
import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx

from flows.deployments import reevaluation_settings
from flows.servers import databases, processes, stores
from flows.servers.settings import POOL, PORTS, Settings, check_ports, choose_port, load, slots_name
from flows.working_tree import end_orphans
from rlhf_core.errors import RewardsmithError
from tasks.running import machine
from tasks.running.platform_state import CLIENT, FOLDER, STATE, alive, write_private


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Lets one `up` or `down` run at a time; another waits."""
    path = root / FOLDER / "lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _running(folder: Path, asked: Mapping[str, int | None]) -> dict[str, int]:
    """Returns the ports of the servers that run.

    Raises:
        RewardsmithError: one of them is asked to move.
    """
    state = processes.read_state(folder)
    noted = state["processes"]
    running = {name: int(port) for name, port in state["ports"].items() if name in PORTS and alive(noted.get(name))}
    for name, port in running.items():
        if asked.get(name) not in (None, port):
            raise RewardsmithError(f"{name} runs on port {port}; `rewardsmith down` first, then choose another")
    return running


def _ports(settings: Settings, running: Mapping[str, int], asked: Mapping[str, int | None]) -> dict[str, int]:
    """Returns the ports of what runs, and chosen ones for the rest; what outlived a killed server, and holds its, is
    ended."""
    ports, before = dict(running), processes.read_state(settings.folder)["ports"]
    for name in PORTS:
        if name not in running:
            processes.stop(settings.folder, name)
            others = {*ports.values(), *(port for port in asked.values() if port)}
            ports[name] = choose_port(settings.host, name, asked.get(name), before.get(name), others)
    return ports


def up(root: Path, asked: dict[str, int | None]) -> None:
    """Starts what is not running and repairs what killed processes left.

    Raises:
        RewardsmithError: a port is taken; a database, a server or params/reevaluation.yaml cannot be used.
    """
    began = time.monotonic()
    check_ports(asked)
    reevaluation_settings(root)
    settings = load(root, PORTS)
    stores.refuse_others(settings)
    running = _running(settings.folder, asked)
    check_stores(settings)
    settings = replace(settings, ports=_ports(settings, running, asked))
    folder = settings.folder
    noted = processes.read_state(folder)["processes"]
    ends = [name for name in PORTS if alive(noted.get(name)) and not processes.answers(settings, name, timeout=10)]
    for name in ends:
        print(f"{name} does not answer; restarting it")
        processes.stop(folder, name)
    missing = [name for name in PORTS if not alive(noted.get(name)) or name in ends]
    for name in missing:
        processes.stop(folder, name)
    write_private(folder / STATE, {**processes.read_state(folder), "ports": dict(settings.ports)})
    write_private(folder / CLIENT, settings.client())
    databases.write_auth_file(settings)
    for name in databases.prepare(settings) if missing else []:
        print(f"prepared the {name} database: {settings.shown_database(name)}")
    stores.remember(settings)
    started = {name: processes.start(settings, name) for name in missing}
    os.environ.update(settings.client())
    worker_alive = alive(noted.get("worker"))
    if "prefect" in missing and worker_alive:
        processes.stop(folder, "worker")  # it still asks the server that died
        worker_alive = False
    _import_prefect()
    processes.wait_until_ready(settings, started)
    try:
        done = _update_platform(settings)
    except httpx.HTTPError as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        log = folder / "logs" / "prefect.log"
        raise RewardsmithError(
            f"the Prefect server failed while it was set up: {why} (log: {log}). Check that its database responds, "
            "then run `rewardsmith up` again: it continues from here"
        ) from None
    for line in done:
        print(line)
    if not worker_alive:
        processes.stop(folder, "worker")
        start = datetime.now(UTC)
        processes.start(settings, "worker")
        _wait_for_worker(settings, start)
    print(f"page     {settings.url('page')}   ({folder / 'credentials.json'} holds user and password)")
    print(f"Prefect  {settings.url('prefect')}\nMLflow   {settings.url('mlflow')}")
    print(f"up in {time.monotonic() - began:.1f} s")


def check_stores(settings: Settings) -> None:
    """Looks at every store before anything is started, stopped or changed; creates databases that are missing at last.

    Raises:
        RewardsmithError: one cannot be used.
    """
    stores.refuse_full_disk(settings)
    stores.check_artifacts(settings)
    databases.create_missing(settings)


def _import_prefect() -> None:
    """Imports what is needed below while the servers start."""
    import prefect.client.orchestration
    import prefect.flows  # noqa: F401


def _update_platform(settings: Settings) -> list[str]:
    """Brings pool, limits, states of killed runs and deployments in line with the tree; returns what it did, in
    words."""
    from prefect.client.orchestration import get_client

    from flows.deployments import apply, make_pool
    from flows.run_notes import crash_dead_runs, crash_silent_runs
    from flows.shared_slots import make_limits

    with get_client(sync_client=True) as client:
        make_pool(client)
        make_limits(client, slots_name())
        crash_silent_runs(client, "runs", dead=600, begin=600)  # they go on while the server is away
        done = crash_dead_runs(client, settings.folder) + end_orphans(settings.root)
        apply(settings.root, client)
    return done


def _wait_for_worker(settings: Settings, start: datetime) -> None:
    """Waits until the worker started then has reported to the server.

    Raises:
        RewardsmithError: it ended, or did not report.
    """
    from prefect.client.orchestration import get_client

    until = time.monotonic() + processes.START_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < until:
            workers = client._client.post(f"/work_pools/{POOL}/workers/filter", json={}).json()
            beats = [one["last_heartbeat_time"] for one in workers if one["name"] == settings.worker]
            if any(beat and datetime.fromisoformat(beat) >= start for beat in beats):  # one just killed looks online
                return
            if not alive(processes.read_state(settings.folder)["processes"].get("worker")):
                raise RewardsmithError(f"the worker ended: {processes.last_line(settings, 'worker')}")
            time.sleep(0.3)
    raise RewardsmithError(f"the worker does not report: {processes.last_line(settings, 'worker')}")


def down(root: Path) -> None:
    """Stops worker, runs with their stages, page and servers, in this order, whichever of them still live."""
    from flows.run_notes import end_runs

    folder = root / FOLDER
    stopped = ["worker"] if processes.stop(folder, "worker") else []
    stopped += end_runs(root)
    stopped += [name for name in processes.STOPPING[1:] if processes.stop(folder, name)]
    (folder / CLIENT).unlink(missing_ok=True)
    stores.forget_host(folder)
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def status(root: Path) -> int:
    """Prints what runs; returns 0 when all of it does."""
    folder = root / FOLDER
    state = processes.read_state(folder)
    settings = load(root, {**PORTS, **state["ports"]})
    settings = replace(settings, host=stores.host_of(settings))
    missing = 0
    for name in reversed(processes.STOPPING):
        there = alive(state["processes"].get(name))
        missing += not there
        address = settings.url(name) if name in PORTS else ""
        print(f"{name:8} {'up' if there else 'down':5} {address if there else ''}".rstrip())
    return int(missing > 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.servers", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("up", "down", "status"))
    for name in PORTS:
        parser.add_argument(f"--{name}-port", type=int, metavar="N", help=f"port of {name}")
    options = parser.parse_args(arguments)
    root = Path.cwd().resolve()
    try:
        if options.what == "status":
            return status(root)
        with only_one(root):
            if options.what == "up":
                up(root, {name: getattr(options, f"{name}_port") for name in PORTS})
            else:
                down(root)
    except RewardsmithError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"error: {machine.full_disk(f'{error.filename or root} cannot be written')}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
