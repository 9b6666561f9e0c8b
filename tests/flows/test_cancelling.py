"""Runs that are cancelled in Prefect's page and that no living worker started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import psutil
import pytest
from prefect.exceptions import Abort
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Running

from flows import cancelling
from flows.cancelling import ends_when_cancelled
from flows.run_notes import host_tag
from flows.servers import recovery, settings
from flows.working_tree import end_group, running_groups
from tasks.running.platform_state import FOLDER, STATE, note_of, write_private
from tests import small_repository
from tests.chaos import wait_for
from tests.small_repository import PROJECT, clean_environment, command


class Ended(BaseException):
    """Stand-in for the exception that Prefect raises in a flow that gets SIGTERM."""


class Server:
    """Prefect's client of one run."""

    def __init__(self, state: Any) -> None:
        self.state, self.away, self.set = state, False, list[str]()
        place = {"tags": [host_tag()], "infrastructure_pid": None, "work_pool_name": None}
        self.run = SimpleNamespace(id=uuid4(), name="own", state=state, **place)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_flow_run(self, _run: UUID) -> Any:
        if self.away:
            raise httpx.ConnectError("refused")
        return SimpleNamespace(state=self.state)

    def set_flow_run_state(self, _run: UUID, state: Any, force: bool) -> None:
        assert force
        self.set.append(state.name)

    def read_flow_runs(self, flow_run_filter: Any, limit: int) -> list[Any]:
        return [self.run] if self.state.type in flow_run_filter.state.type.any_ else []

    def read_global_concurrency_limits(self, limit: int) -> list[Any]:
        return []


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A run that is being cancelled, in a process that Prefect's flow engine would end on SIGTERM."""
    made = Server(Cancelling())
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: made)
    monkeypatch.setattr(cancelling, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(cancelling, "WORKER_SECONDS", 0.5)
    for name in (cancelling.STARTED, "REWARDSMITH_PLATFORM"):
        monkeypatch.delenv(name, raising=False)

    def end(*_: object) -> None:
        raise Ended

    before = signal.signal(signal.SIGTERM, end)
    with temporary_settings({PREFECT_API_URL: "http://server/api"}):
        yield made
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("started", "worker", "waits"), [(False, 0, False), (True, 0, True), (True, 1, False)])
def test_a_run_that_no_worker_ends_ends_itself_and_is_cancelled(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, started: bool, worker: int, waits: bool
) -> None:
    """A worker that lives has the time to do it; what it began is not interrupted."""
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(tmp_path))
    if started:
        monkeypatch.setenv(cancelling.STARTED, str(uuid4()))
        note = note_of(os.getpid())
        write_private(tmp_path / STATE, {"processes": {"worker": note | {"started": note["started"] - worker}}})
    began, ended = time.monotonic(), []

    def stages() -> None:
        try:
            time.sleep(20)
        finally:
            assert server.set == [], "stages end first"
            time.sleep(0.2)
            ended.append(True)

    with pytest.raises(Abort, match="cancelled in Prefect"), ends_when_cancelled(uuid4()):
        stages()
    assert ended
    assert server.set == ["Cancelled"]
    assert (time.monotonic() - began > 0.7) == waits


def test_what_a_worker_ends_is_left_to_it(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cancelling.STARTED, str(uuid4()))
    handlers = []

    def stages() -> None:
        handlers.append(signal.getsignal(signal.SIGTERM))
        time.sleep(20)

    before = signal.getsignal(signal.SIGTERM)
    threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGTERM]).start()
    with pytest.raises(Ended), ends_when_cancelled(uuid4()):
        stages()
    time.sleep(0.7)
    assert server.set == []
    assert handlers == [before], "Prefect answers its worker only while the handler is its own"


def fail() -> None:
    raise ValueError("a stage failed")


@pytest.mark.parametrize("work", [time.time, fail])
def test_a_run_that_is_done_while_it_is_being_cancelled_is_cancelled(
    server: Server, monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]
) -> None:
    """Prefect takes no other state from it."""
    monkeypatch.setattr(cancelling, "LOOK_SECONDS", 20)
    with pytest.raises(Abort), ends_when_cancelled(uuid4()):
        work()
    assert server.set == ["Cancelled"]


@pytest.mark.parametrize("away", [False, True])
def test_a_run_that_nobody_cancels_goes_on_whether_the_server_answers_or_not(server: Server, away: bool) -> None:
    server.state, server.away = Running(), away
    with ends_when_cancelled(uuid4()):
        time.sleep(0.3)
    with pytest.raises(ValueError, match="a stage failed"), ends_when_cancelled(uuid4()):
        fail()
    assert server.set == []


@pytest.mark.parametrize("worker_alive", [False, True])
@pytest.mark.parametrize("lives", [False, True])
def test_up_cancels_a_run_that_nobody_can_end(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worker_alive: bool, lives: bool
) -> None:
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(recovery, "process_of", lambda *_: psutil.Process(process.pid) if lives else None)
    monkeypatch.delenv("REWARDSMITH_HOST", raising=False)
    try:
        done = recovery.repair(settings.load(tmp_path, settings.PORTS), worker_alive=worker_alive)
        left_to_them = worker_alive and lives
        assert done == ([] if left_to_them else ["run own is cancelled"])
        assert server.set == ([] if left_to_them else ["Cancelled"])
        ended = lives and not worker_alive
        if ended:
            process.wait(10)
        assert (process.poll() is not None) == ended
    finally:
        process.kill()
        process.wait()


@pytest.mark.platform
def test_a_command_lines_run_that_is_cancelled_on_a_server_ends_with_its_stages_and_leases(tmp_path: Path) -> None:
    """A server alone, as for a run whose worker was killed: nobody there ends a run."""
    root = small_repository.create(tmp_path / "tree", demo=("bandit",), seeds=(0,))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    api = f"http://127.0.0.1:{port}/api"
    environment = clean_environment(
        PREFECT_HOME=str(tmp_path / "prefect"), PREFECT_UI_ENABLED="false", PYTHONPATH=str(PROJECT)
    )
    call = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    client = {"PREFECT_API_URL": api, "REWARDSMITH_SLOTS": "own", "REWARDSMITH_PLATFORM": str(root / FOLDER)}
    started: list[subprocess.Popen[str]] = []

    def answers() -> bool:
        with suppress(httpx.HTTPError):
            return httpx.get(f"{api}/health", timeout=5).is_success
        return False

    def runs(kind: str) -> list[Any]:
        wanted = {"flow_runs": {"state": {"type": {"any_": [kind]}}}}
        return list(httpx.post(f"{api}/flow_runs/filter", json=wanted, timeout=30).json())

    def held() -> int:
        limits = httpx.post(f"{api}/v2/concurrency_limits/filter", json={}, timeout=30).json()
        return sum(int(limit["active_slots"]) for limit in limits)

    with (tmp_path / "server.log").open("w") as log:
        started.append(subprocess.Popen(call, env=environment, stdout=log, stderr=log, text=True))
        try:
            wait_for(answers)
            command(sys.executable, "-P", "-m", "flows.shared_slots", root=root, PYTHONPATH=str(PROJECT), **client)
            flow = [sys.executable, "-P", "-m", "flows.segment", "--no-report", "--no-sync"]
            run = subprocess.Popen(
                flow,
                cwd=root,
                env={**environment, **client, "STAND_IN_SECONDS": "600"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
            started.append(run)
            wait_for(lambda: running_groups(root) and held())
            (own,) = runs("RUNNING")
            asked = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
            httpx.post(f"{api}/flow_runs/{own['id']}/set_state", json=asked, timeout=30).raise_for_status()
            output, _ = run.communicate(timeout=120)
            assert run.returncode == 1, output
            assert "error: the run was cancelled in Prefect" in output
            assert [one["id"] for one in runs("CANCELLED")] == [own["id"]]
            assert running_groups(root) == {}
            assert held() == 0
            assert not list((root / FOLDER / "flow-runs").iterdir())
        finally:
            for group in running_groups(root):
                end_group(group)
            for process in reversed(started):
                process.terminate()
                process.wait(60)
