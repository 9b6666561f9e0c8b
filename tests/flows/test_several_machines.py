"""Two machines on one run: clones of their own, one Prefect server, one DVC remote, and a kill in mid-stage."""

from __future__ import annotations

import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import psutil
import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient

from flows.run_notes import host_tag
from flows.several_machines import Machines, at_work
from rlhf_core.errors import RewardsmithError
from tasks.dvc.remote import RemoteFailed
from tests import small_repository
from tests.small_repository import PROJECT, clean_environment, command

SEEDS = (0, 1)
#: Seconds that a stand-in stage takes, so that there is a middle to be killed in.
STAGE_SECONDS = "3"


def wait_for(condition: Callable[[], object], seconds: float = 400) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.1)


def calls(root: Path) -> list[str]:
    """Output folders of the stages that ran in a clone, in their order."""
    path = root / ".work" / "calls"
    return [line.split(" ")[1] for line in path.read_text().splitlines()] if path.exists() else []


def locked(root: Path) -> dict[str, object]:
    return dict(yaml.safe_load((root / "dvc.lock").read_text())["stages"])


class Team:
    """A repository, its remote and clones of it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.remote = folder, folder / "remote"
        self.origin = small_repository.create(folder / "origin", demo=("bandit",), seeds=SEEDS)
        self.remote.mkdir()
        command("dvc", "remote", "add", "-d", "team", str(self.remote), root=self.origin)
        command("git", "commit", "-qam", "remote", root=self.origin)

    def clone(self, name: str) -> Path:
        command("git", "clone", "-q", str(self.origin), str(self.folder / name), root=self.folder)
        return self.folder / name

    def start(self, root: Path, *arguments: str, seconds: str = "0", core: int = 0) -> subprocess.Popen[str]:
        """A machine of the team: its flow in a clone, on one core, so that no machine takes everything."""
        call = [sys.executable, "-P", "-m", "flows.segment", "--no-report", "--no-sync", "--remote", "team", *arguments]
        return subprocess.Popen(
            call,
            cwd=root,
            env=clean_environment(PYTHONPATH=str(PROJECT), STAND_IN_SECONDS=seconds),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]}),
        )


def kill_machine(process: subprocess.Popen[str]) -> None:
    """What a power cut does: every process at once, without a word."""
    members = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
    for member in members:
        with suppress(psutil.NoSuchProcess):
            member.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Prefect server with its services: a temporary one ends no leases of the dead."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    services = {"PREFECT_UI_ENABLED": "false", "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "2"}
    environment = clean_environment(PREFECT_HOME=str(tmp_path / "prefect"), **services)
    call = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(call, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            wait_for(lambda: answers(f"http://127.0.0.1:{port}/api/health"))
            monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{port}/api")
            yield
        finally:
            process.terminate()
            process.wait(60)


def ask(route: str, question: dict[str, Any]) -> list[dict[str, Any]]:
    """Asks Prefect's server, which may be slow on a busy machine."""
    answer = httpx.post(f"{os.environ['PREFECT_API_URL']}/{route}/filter", json=question, timeout=120)
    return list(answer.json())


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def places() -> set[str]:
    """Where stages are at work, in the words in which machines tell each other."""
    running = {"task_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
    names = [run["name"] for run in ask("task_runs", running)]
    with SyncPrefectClient(os.environ["PREFECT_API_URL"]) as client:
        return {at_work(client, name) for name in names}


@pytest.mark.platform
def test_two_machines_one_killed_in_mid_stage_end_like_one_that_ran_alone(tmp_path: Path, server: None) -> None:
    team = Team(tmp_path)
    first, second = team.clone("first"), team.clone("second")
    victim = team.start(first, seconds=STAGE_SECONDS)
    survivor = team.start(second, seconds=STAGE_SECONDS, core=-1)
    try:
        for clone in (first, second):
            told = re.compile(rf"on \S+ in {re.escape(str(clone))} \(run \S+, commit \w{{10}}\)")
            wait_for(lambda told=told: any(told.fullmatch(place) for place in places()))
        wait_for(lambda: calls(first) and calls(second))
        there = len(calls(first))
        wait_for(lambda: len(calls(first)) > there)
        cut = calls(first)[-1]
        kill_machine(victim)
        output, _ = survivor.communicate(timeout=600)
        assert survivor.returncode == 0, output
    finally:
        for process in (victim, survivor):
            if process.poll() is None:
                kill_machine(process)

    alive = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}}
    assert ask("flow_runs", alive) == [], "the dead machine's run is crashed"
    assert [limit["name"] for limit in ask("v2/concurrency_limits", {})] == [], "neither machine leaves a limit"

    alone = team.clone("alone")
    command("dvc", "repro", "-q", root=alone)
    assert set(calls(first)) | set(calls(second)) == set(calls(alone))
    both = set(calls(first)) & set(calls(second))
    assert both == {cut}, "a stage ran on both machines although its result was there"
    for path in sorted(alone.glob("results/**/result/*")):
        if path.is_file():
            assert (second / path.relative_to(alone)).read_bytes() == path.read_bytes()
    assert "up to date" in command("dvc", "status", root=second).stdout

    third = team.clone("third")
    command("dvc", "repro", "-q", "--pull", root=third)
    assert not calls(third), "the remote holds every result and run-cache entry"
    assert locked(third) == locked(second)
    for path in team.remote.glob("files/md5/*/*"):
        digest = hashlib.md5(path.read_bytes()).hexdigest()
        assert path.parent.name + path.name.removesuffix(".dir") == digest, "something half-written is on the remote"

    before = calls(first)
    line, _ = team.start(first, "--no-pull").communicate(timeout=200)
    assert locked(first) == locked(second), line
    assert calls(first) == before, "the machine that died is back, and finds all done"
    assert not (first / "results/testbed/segment/tables-demo").exists(), "what it does not need stays on the remote"
    assert ask("flow_runs", alive) == []


@pytest.mark.platform
def test_machines_need_a_common_server_and_a_committed_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.several_machines import check_clean, check_server

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(RewardsmithError, match="set PREFECT_API_URL"):
        check_server()
    root = Team(tmp_path).clone("mine")
    assert len(check_clean(root)) == 40
    small_repository.change_entry(root / "params" / "segment" / "rows.yaml", "bandit", title="other")
    with pytest.raises(RewardsmithError, match=r"rows\.yaml: other machines would run something else"):
        check_clean(root)


class Look:
    """A remote that gives the answers it is told to give: errors are raised."""

    name = "team"

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)

    def learn(self, _address: str) -> bool:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def key(self, _address: str) -> str:
        return "k" * 40

    def write_locks(self) -> None:
        pass


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Machines, list[str]]]:
    """Makes a machine that looks at such a remote without waiting, and what it says and does."""

    def made(*answers: bool | Exception) -> tuple[Machines, list[str]]:
        machines, said = object.__new__(Machines), []
        monkeypatch.setattr("flows.several_machines.LOOK_SECONDS", 0.0)
        monkeypatch.setattr(machines, "_lease", lambda limit: said.append("taken") or uuid4(), raising=False)
        monkeypatch.setattr(machines, "_give_up", lambda limit, lease: said.append("given up"), raising=False)
        log = SimpleNamespace(info=lambda text, *parts: said.append(text % parts))
        log.warning = log.info
        machines.remote, machines.log = Look(*answers), log  # type: ignore[assignment]
        machines.leases = SimpleNamespace(give_back=lambda lease: said.append("given back"))  # type: ignore[assignment]
        machines._held, machines._next_look, machines._said, machines._lost_since = {}, {}, set(), None
        return machines, said

    return made


def test_a_remote_that_does_not_answer_is_asked_again_and_said_once(
    looking: Callable[..., tuple[Machines, list[str]]],
) -> None:
    away = RemoteFailed("remote 'team' cannot be asked: timed out")
    machines, said = looking(away, away, False, away, True)
    assert [machines.take("a", able=True) for _ in range(4)] == ["wait"] * 3 + ["use result"]
    assert [line for line in said if line.startswith("remote")] == [
        "remote 'team' cannot be asked: timed out. Running stages continue; no other starts before it answers",
        "remote 'team' answers again",
        "remote 'team' cannot be asked: timed out. Running stages continue; no other starts before it answers",
        "remote 'team' answers again",
    ]
    assert said.count("taken") == said.count("given back") == 1, "the lease taken before the second look"
    assert not machines._held


def test_a_remote_that_is_lost_ends_a_run_only_where_nothing_is_at_work(
    looking: Callable[..., tuple[Machines, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    away = RemoteFailed("remote 'team' cannot be asked: timed out")
    machines, _ = looking(*[away] * 4)
    monkeypatch.setattr("flows.several_machines.LOST_SECONDS", 0.0)
    machines._held["training"] = "limit", uuid4()
    assert [machines.take("a", able=True) for _ in range(3)] == ["wait"] * 3
    machines._held.clear()
    with pytest.raises(RemoteFailed, match="timed out"):
        machines.take("a", able=True)


@pytest.mark.parametrize(
    ("tags", "noted", "pending", "ours"),
    [
        ([], False, True, True),
        ([], False, False, False),
        ([host_tag()], False, False, True),
        (["host:elsewhere"], False, False, False),
        ([host_tag(), "machine:other", "clone:/there"], False, False, False),
        (["machine:other"], True, False, True),
    ],
)
def test_only_runs_of_this_platform_are_repaired_here(
    tmp_path: Path, tags: list[str], noted: bool, pending: bool, ours: bool
) -> None:
    """A run that shares its work with others lives on a machine that this one cannot look at."""
    from flows.servers.recovery import _of_this_machine

    state = SimpleNamespace(is_pending=lambda: pending)
    run = SimpleNamespace(id="1", tags=tags, infrastructure_pid=None, state=state)
    if noted:
        (tmp_path / "1.json").touch()
    assert _of_this_machine(run, tmp_path) is ours
