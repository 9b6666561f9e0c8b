"""Runs whose process died, and runs that are cancelled in Prefect's page, against a stand-in of Prefect's client."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import prefect.runtime
import pytest
from prefect.exceptions import Abort
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling, Completed, Running

from flows import run_notes
from flows.run_notes import CancelWatch, crash_dead_runs, note_running_process
from tasks.running.platform_state import note_of, write_private
from tests.flows import without_stages


class Client:
    """Prefect's client of one run."""

    def __init__(self, state: Any = None) -> None:
        self.state, self.away, self.set = state, False, list[str]()

    def read_flow_run(self, run: UUID) -> Any:
        if self.away:
            raise httpx.ConnectError("refused")
        return SimpleNamespace(id=run, name="own", state=self.state)

    def set_flow_run_state(self, _run: UUID, state: Any, force: bool) -> None:
        assert force
        self.set.append(state.name)


@pytest.mark.parametrize(
    ("state", "lives", "becomes"),
    [(Running(), True, []), (Running(), False, ["Crashed"]), (Cancelling(), False, ["Cancelled"]),
     (Completed(), False, [])],
)  # fmt: skip
def test_up_crashes_the_runs_whose_process_is_gone(tmp_path: Path, state: Any, lives: bool, becomes: list[str]) -> None:
    note = note_of(os.getpid()) | {"root": str(tmp_path)} | ({} if lives else {"started": -1})
    path = tmp_path / "flow-runs" / f"{uuid4()}.json"
    write_private(path, note)
    client = Client(state)
    assert len(crash_dead_runs(client, tmp_path)) == len(becomes)
    assert client.set == becomes
    assert path.exists() == lives


@pytest.mark.parametrize("made", without_stages.FLOWS)
def test_a_run_is_noted_while_it_mirrors_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    identity, seen = str(uuid4()), []
    note = tmp_path / "flow-runs" / f"{identity}.json"
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(tmp_path))
    monkeypatch.setattr(prefect.runtime.flow_run, "id", identity, raising=False)

    def follow_ups(_root: Path, *calls: tuple[str, Any]) -> list[str]:
        seen.extend((module, note.exists()) for module, _ in calls)
        return []

    without_stages.run(monkeypatch, made, tmp_path, follow_ups, full=False, seeds=())
    assert seen == [("tasks.tracking.mirror", True), ("tasks.report", True)]
    assert not note.exists()


@pytest.mark.parametrize(("started", "waits"), [(False, False), (True, True)])
def test_a_cancelled_run_ends_itself_once_a_worker_would_have_ended_it(
    monkeypatch: pytest.MonkeyPatch, started: bool, waits: bool
) -> None:
    client = Client(Running())
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: client)
    monkeypatch.setattr(prefect.runtime.flow_run, "id", str(uuid4()), raising=False)
    monkeypatch.setattr(run_notes, "LOOK_SECONDS", 0.0)
    monkeypatch.delenv(run_notes.STARTED, raising=False)
    if started:
        monkeypatch.setenv(run_notes.STARTED, "x")
    with temporary_settings({PREFECT_API_URL: "http://server/api"}):
        watch = CancelWatch()
    watch.look()
    client.state, client.away = Cancelling(), True
    watch.look()
    client.away = False
    if waits:
        watch.look()
        monkeypatch.setattr(run_notes, "WORKER_SECONDS", 0.0)
    assert client.set == []
    with pytest.raises(Abort, match="cancelled in Prefect"):
        watch.look()
    assert client.set == ["Cancelled"]


def test_a_run_of_a_temporary_server_is_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REWARDSMITH_PLATFORM", raising=False)
    CancelWatch().look()
    with note_running_process(tmp_path):
        assert not list(tmp_path.iterdir())
