"""A team of machines for tests: a Prefect server, a DVC remote, and clones of one repository with stand-in stages."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from flows.working_tree import started_processes
from tests import small_repository
from tests.chaos import wait_for
from tests.small_repository import PROJECT, clean_environment, command

POOL = "gpus"


def calls(root: Path) -> list[str]:
    """Output folders of the stages that ran in a clone, in their order."""
    path = root / ".work" / "calls"
    return [line.split(" ")[1] for line in path.read_text().splitlines()] if path.exists() else []


class Team:
    """A repository, its remote and clones of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.remote = folder, folder / "remote"
        self.origin = small_repository.create(folder / "origin", demo=("bandit",), seeds=(0,))
        self.remote.mkdir()
        command("dvc", "remote", "add", "-d", "team", str(self.remote), root=self.origin)
        command("git", "commit", "-qam", "remote", root=self.origin)

    def clone(self, name: str) -> Path:
        command("git", "clone", "-q", str(self.origin), str(self.folder / name), root=self.folder)
        return self.folder / name

    def start(self, root: Path, call: str, seconds: str = "0", **parameters: Any) -> subprocess.Popen[str]:
        """Starts a call of the flows in a clone, as a machine of its own."""
        environment = {"PYTHONPATH": str(PROJECT), "STAND_IN_SECONDS": seconds, "REWARDSMITH_SLOTS": root.name}
        environment |= {"PREFECT_WORKER_QUERY_SECONDS": "1"}
        with (self.folder / f"{root.name}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "flows", call, json.dumps(parameters)],
                cwd=root,
                env=clean_environment(**environment),
                stdout=log,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    def worker(self, root: Path, seconds: str = "0") -> subprocess.Popen[str]:
        """Starts a worker, and returns when it looks for stages."""
        before = self.log(root).count("started!")
        process = self.start(root, "worker", seconds=seconds, pool=POOL, limit=1)
        wait_for(lambda: self.log(root).count("started!") > before or process.poll() is not None)
        assert process.poll() is None, self.log(root)
        wait_for(lambda: any(queue["status"] == "READY" for queue in ask("work_queues", {}) if queue["description"]))
        return process

    def coordinator(self, root: Path) -> subprocess.Popen[str]:
        return self.start(root, "paper", paper="segment", report=False, sync=False, pool=POOL)

    def log(self, root: Path) -> str:
        path = self.folder / f"{root.name}.log"
        return path.read_text() if path.exists() else ""

    def half_written(self) -> list[str]:
        """Returns the files of the remote whose content is not what their names say."""
        found = []
        for path in self.remote.glob("files/md5/*/*"):
            if path.parent.name + path.name.removesuffix(".dir") != hashlib.md5(path.read_bytes()).hexdigest():
                found.append(path.relative_to(self.remote).as_posix())
        return found


def differing(reference: Path, root: Path) -> list[str]:
    """Returns the results of one clone that another one has not, or not byte for byte, and those that it has beside."""
    wanted, found = ({p.relative_to(one): p.read_bytes() for p in one.glob("results/**/result/**/*") if p.is_file()}
                     for one in (reference, root))  # fmt: skip
    return [path.as_posix() for path in sorted({*wanted, *found}) if wanted.get(path) != found.get(path)]


def kill(process: subprocess.Popen[str], clone: Path) -> None:
    """Kills every process of a machine at once, as a power cut does."""
    groups = [process.pid, *(stage.pid for stage, _ in started_processes(clone))]
    with suppress(psutil.NoSuchProcess):
        groups += [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    for group in groups:
        for send in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                send(group, signal.SIGKILL)
    process.wait()


class Server:
    """A Prefect server with its services; killed and started again, it has the same address and database."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/api"
        self.start()

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        environment = clean_environment(
            PREFECT_HOME=str(self.folder / "prefect"),
            PREFECT_UI_ENABLED="false",
            PREFECT_API_DATABASE_TIMEOUT="60",
            PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE="prefect.server.concurrency.lease_storage.filesystem",
        )
        call = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "server.log").open("a") as log:
            self.process = subprocess.Popen(call, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
        wait_for(lambda: answers(f"{self.url}/health"))

    def kill(self) -> None:
        """Kills it at once."""
        kill(self.process, self.folder)

    def close(self) -> None:
        """Ends it in order."""
        self.process.terminate()
        self.process.wait(60)


def ask(route: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    """Asks Prefect's server, which may be slow on a busy machine."""
    answer = httpx.post(f"{os.environ['PREFECT_API_URL']}/{route}/filter", json=question, timeout=120)
    return list(answer.json())


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def stage_runs() -> list[dict[str, Any]]:
    """Flow runs of stages."""
    return ask("flow_runs", {"flows": {"name": {"any_": ["stage"]}}})
