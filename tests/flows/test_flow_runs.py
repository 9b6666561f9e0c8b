"""Runs whose process died, and runs that are cancelled in Prefect's page, against a stand-in of Prefect's client."""

from __future__ import annotations

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import prefect.runtime
import pytest
from prefect.exceptions import Abort
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Running

from flows import flow_runs
from flows.flow_runs import CancelWatch, crash_dead_runs
from tasks.running.platform_state import PLATFORM, SERVER


class Client:
    """Prefect's client of one run."""

    def __init__(self, state: Any = None) -> None:
        self.run, self.away, self.set = SimpleNamespace(id=uuid4(), name="own", state=state), False, list[str]()

    def read_flow_run(self, _run: UUID) -> Any:
        if self.away:
            raise httpx.ConnectError("refused")
        return self.run

    def read_flow_runs(self, **_: Any) -> list[Any]:
        return [self.run]

    def set_flow_run_state(self, _run: UUID, state: Any, force: bool) -> None:
        assert force
        self.set.append(state.name)


@pytest.mark.parametrize(
    ("state", "there", "becomes"),
    [(Running(), True, []), (Running(), False, ["Crashed"]), (Cancelling(), False, ["Cancelled"])],
)
def test_up_crashes_the_runs_whose_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: Any, there: bool, becomes: list[str]
) -> None:
    client = Client(state)
    mine = {flow_runs.STARTED: str(client.run.id), PLATFORM: str(tmp_path.resolve()), SERVER: "worker"}
    others = {**mine, PLATFORM: "/another"}
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, **(mine if there else others)})
    try:
        assert len(crash_dead_runs(client, tmp_path, "rewardsmith")) == len(becomes)
    finally:
        process.kill()
        process.wait()
    assert client.set == becomes


@pytest.mark.parametrize("started", [False, True])
def test_a_cancelled_run_ends_itself_unless_a_worker_ends_it(monkeypatch: pytest.MonkeyPatch, started: bool) -> None:
    client = Client(Running())
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: client)
    monkeypatch.setattr(prefect.runtime.flow_run, "id", str(uuid4()), raising=False)
    monkeypatch.setattr(flow_runs, "POLL_SECONDS", 0.0)
    monkeypatch.delenv(flow_runs.STARTED, raising=False)
    if started:
        monkeypatch.setenv(flow_runs.STARTED, "x")
    with temporary_settings({PREFECT_API_URL: "http://server/api"}):
        watch = CancelWatch()
    watch.look()
    client.run.state, client.away = Cancelling(), True
    watch.look()
    client.away = False
    assert client.set == []
    with nullcontext() if started else pytest.raises(Abort, match="cancelled in Prefect"):
        watch.look()
    assert client.set == ([] if started else ["Cancelled"])
