"""A machine's own runs, and that a run is known to live until its last task has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import prefect.runtime
import pytest
from prefect import flow, tags, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.states import Pending, Running
from prefect.testing.utilities import prefect_test_harness

from flows import run_notes
from flows.follow_ups import follow_ups
from flows.run_notes import HOST, host_tag
from flows.servers.recovery import _of_this_machine
from flows.servers.settings import slots_name
from flows.working_tree import running_groups
from tests.flows import without_stages


def run(state: Any, tags: tuple[str, ...] = (), pid: str | None = None, pool: str = "rewardsmith") -> Any:
    return SimpleNamespace(id=uuid4(), state=state, tags=list(tags), infrastructure_pid=pid, work_pool_name=pool)


@pytest.mark.parametrize(
    ("found", "mine"),
    [
        (run(Running(), (host_tag(),)), True),
        (run(Running(), (), f"{slots_name()}:77"), True),
        (run(Running(), (f"{HOST}elsewhere",)), False),
        (run(Running(), (), "elsewhere:77"), False),
        (run(Running()), False),
        (run(Pending()), True),
        (run(Pending(), pool="gpus"), False),
        (run(Pending(), (), "elsewhere:77"), False),
    ],
)
def test_a_run_is_repaired_on_its_own_machine_only(tmp_path: Path, found: Any, mine: bool) -> None:
    assert _of_this_machine(found, tmp_path) is mine


def test_a_run_that_is_noted_here_is_of_this_machine(tmp_path: Path) -> None:
    found = run(Running(), (f"{HOST}elsewhere",))
    (tmp_path / f"{found.id}.json").touch()
    assert _of_this_machine(found, tmp_path)


@pytest.mark.parametrize(
    ("module", "lives"),
    [("prefect.runner._workspace_supervisor", True), ("prefect.engine", True), ("tasks.tracking.mirror", False)],
)
def test_what_a_killed_run_called_is_not_taken_for_the_run(tmp_path: Path, module: str, lives: bool) -> None:
    """A call has the run's id in its environment; while it lived the run would stay running for ever."""
    identity = str(uuid4())
    words = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)", "-m", module]
    environment = {**os.environ, "PREFECT__FLOW_RUN_ID": identity}
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = run_notes.process_of(tmp_path, identity)
        process.kill()
    assert (found is not None and found.pid == process.pid) == lives


class Client:
    """Prefect's client of one run."""

    tags = ("mine", f"{HOST}elsewhere")

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read_flow_run(self, _run: object) -> Any:
        return SimpleNamespace(tags=list(self.tags))

    def update_flow_run(self, _run: object, tags: list[str]) -> None:
        self.tags = tuple(tags)


@pytest.mark.parametrize("made", without_stages.FLOWS)
def test_a_run_is_noted_while_it_mirrors_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    client, identity, seen = Client(), str(uuid4()), []
    note = tmp_path / "flow-runs" / f"{identity}.json"
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(tmp_path))
    monkeypatch.setattr(prefect.runtime.flow_run, "id", identity, raising=False)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: client)

    def follow_ups(_root: Path, *calls: tuple[str, Any]) -> list[str]:
        seen.extend((module, note.exists()) for module, _ in calls)
        return []

    without_stages.run(monkeypatch, made, tmp_path, follow_ups, full=False, seeds=())
    assert seen == [("tasks.tracking.mirror", True), ("tasks.report", True)]
    assert not note.exists()
    assert client.tags == ("mine", host_tag())
    assert run_notes.HOST in host_tag()


@pytest.fixture(scope="module")
def server() -> Iterator[None]:
    """A temporary Prefect server that ends before the tests do."""
    with prefect_test_harness(server_startup_timeout=300):
        yield


@pytest.mark.platform
@pytest.mark.usefixtures("server")
@pytest.mark.parametrize("interrupted", [False, True])
def test_what_follows_a_run_is_marked_and_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interrupted: bool
) -> None:
    (tmp_path / "slow.py").write_text("import time\nprint('begun')\ntime.sleep(600)\n")
    (tmp_path / "bad.py").write_text("import sys\nsys.exit('no such thing')\n")
    (tmp_path / "good.py").write_text("print('fine')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    main_thread = threading.main_thread().ident
    assert main_thread is not None

    @flow
    def run() -> list[str]:
        if not interrupted:
            return follow_ups(tmp_path, ("good", []), ("bad", []))
        threading.Timer(10, signal.pthread_kill, [main_thread, signal.SIGINT]).start()
        return follow_ups(tmp_path, ("slow", []))

    if interrupted:
        before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
        with pytest.raises(KeyboardInterrupt):
            run()
        signal.signal(signal.SIGINT, before)
    else:
        (problem,) = run()
        assert "bad failed with exit code 1: no such thing" in problem
    assert running_groups(tmp_path) == {}


@task(persist_result=False, cache_policy=NO_CACHE)
def own_tags() -> list[str]:
    return list(prefect.runtime.task_run.tags)


@pytest.mark.platform
@pytest.mark.usefixtures("server")
def test_the_tag_of_the_machine_is_the_runs_and_not_its_tasks(tmp_path: Path) -> None:
    """A tagged task waits, often for two seconds, until the server says that its tags have no limits."""

    @flow(persist_result=False)
    def run() -> tuple[list[str], list[str]]:
        with run_notes.note_running_process(tmp_path), get_client(sync_client=True) as client:
            return client.read_flow_run(UUID(prefect.runtime.flow_run.id)).tags, own_tags.submit().result()

    with tags("mine", host_tag()):
        of_run, of_task = run()
    assert set(of_run) == {"mine", host_tag()}
    assert of_task == ["mine"]
