"""Starts and stops the platform of this working tree.

python -m flows.servers up      starts what is not running, repairs what killed processes left
python -m flows.servers down    stops it: worker first
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import httpx

from flows.deployments import reevaluation_settings
from flows.servers import processes
from flows.servers.settings import POOL, PORTS, Settings, load
from flows.working_tree import end_orphans
from rlhf_core.errors import RewardsmithError, path_error
from rlhf_core.services import client
from tasks.running import machine
from tasks.running.locks import in_turn
from tasks.running.platform_state import CLIENT, FOLDER, STATE, is_up, write_private


def up(root: Path, asked: Mapping[str, int | None]) -> None:
    """Starts what is not running, everything if the host is another than before, and repairs what killed processes
    left.

    Args:
        asked: port of each server, None for any.

    Raises:
        RewardsmithError: a port is taken; a database, a server or params/reevaluation.yaml cannot be used.
    """
    began = time.monotonic()
    reevaluation_settings(root)
    folder = (root / FOLDER).resolve()
    before = processes.read_state(folder)
    settings = load(root, {**PORTS, **before["ports"]})
    machine.refuse_unusable_disk(root)
    kept = {
        name: port
        for name, port in settings.ports.items()
        if before["host"] in ("", settings.host) and asked.get(name) in (None, port)
        if is_up(folder, name) and processes.answers(settings, name, 10)
    }
    missing = [name for name in PORTS if name not in kept]
    for name in missing:
        processes.stop(folder, name)  # also what outlived a killed server and holds its port
    ports = dict(kept)
    for name in missing:
        others = {*ports.values(), *(port for other, port in asked.items() if port and other != name)}
        ports[name] = processes.choose_port(settings.host, name, asked.get(name), before["ports"].get(name), others)
    settings = replace(settings, ports=ports)
    write_private(folder / STATE, processes.note(settings))
    write_private(folder / CLIENT, settings.client())
    if missing and processes.prepare_mlflow(settings):
        print("prepared MLflow's databases")
    started = {name: processes.start(settings, name) for name in missing}
    os.environ.update(settings.client())
    if "prefect" in missing:
        processes.stop(folder, "worker")  # it still asks the server that died
    import prefect.client.orchestration
    import prefect.flows  # noqa: F401  (imported while the servers start)

    processes.wait_until_ready(settings, started)
    try:
        done = _update_platform(settings)
    except httpx.HTTPError as error:
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RewardsmithError(
            f"the Prefect server failed while it was set up: {why} (log: {folder / 'logs' / 'prefect.log'}). Run "
            "`rewardsmith up` again: it continues from here"
        ) from None
    for line in done:
        print(line)
    if not is_up(folder, "worker"):
        start = datetime.now(UTC)
        processes.start(settings, "worker")
        _wait_for_worker(settings, start)
    print(f"Prefect  {settings.url('prefect')}\nMLflow   {settings.url('mlflow')}")
    print(f"User and password are in {folder / 'credentials.json'}")
    print(f"up in {time.monotonic() - began:.1f} s")


def _update_platform(settings: Settings) -> list[str]:
    """Brings pool, limits, states of killed runs and deployments in line with the tree; returns what it did, in
    words."""
    from prefect.client.orchestration import get_client

    from flows.deployments import apply, make_pool
    from flows.flow_runs import crash_dead_runs, crash_silent_runs
    from flows.slots import make_limits

    with get_client(sync_client=True) as client:
        make_pool(client)
        make_limits(client, os.environ["REWARDSMITH_SLOTS"])
        crash_silent_runs(client, "runs", seconds=600)  # they go on while the server is away
        done = crash_dead_runs(client, settings.folder, POOL) + end_orphans(settings.root)
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
        while time.monotonic() < until and is_up(settings.folder, "worker"):
            workers = client._client.post(f"/work_pools/{POOL}/workers/filter", json={}).json()
            beats = [one["last_heartbeat_time"] for one in workers if one["name"] == settings.worker]
            if any(beat and datetime.fromisoformat(beat) >= start for beat in beats):  # one just killed looks online
                return
            time.sleep(0.3)
    raise RewardsmithError(f"the worker ended or does not report: {processes.last_line(settings, 'worker')}")


def down(root: Path) -> None:
    """Stops worker, runs with their stages and servers, in this order, whichever of them still live."""
    from flows.flow_runs import end_runs

    folder = root / FOLDER
    stopped = ["worker"] if processes.stop(folder, "worker") else []
    stopped += end_runs(folder) + [line.removeprefix("ended ") for line in end_orphans(root)]
    stopped += [name for name in reversed(PORTS) if processes.stop(folder, name)]
    (folder / CLIENT).unlink(missing_ok=True)
    print(f"stopped {', '.join(stopped)}" if stopped else "nothing was running")


def port(text: str) -> int:
    """Returns a port from a command line."""
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise argparse.ArgumentTypeError(f"it is {text}; it must be from 1 to 65535")
    return int(text)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.servers", description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=("up", "down"))
    for name in PORTS:
        parser.add_argument(f"--{name}-port", type=port, metavar="N", help=f"port of {name}")
    options = parser.parse_args(arguments)
    root = Path.cwd().resolve()
    try:
        with in_turn(root / FOLDER / "lock", "another `rewardsmith up` or `down` runs here"):
            if options.what == "up":
                client(1).close()  # refuses proxies and certificates that Prefect's clients cannot use
                up(root, {name: getattr(options, f"{name}_port") for name in PORTS})
            else:
                down(root)
    except (RewardsmithError, OSError) as error:
        problem = machine.disk_problem(error, root) if isinstance(error, OSError) else str(error)
        if isinstance(error, PermissionError) and error.filename:  # the folder is another user's
            problem = str(path_error(error))
        if problem is None:
            raise
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
