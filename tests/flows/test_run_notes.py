"""Which runs are a machine's own, and that a run is known to live until its last task has ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import prefect.runtime
import pytest
from prefect.states import Pending, Running

from flows import paper, run_notes, suite
from flows.run_notes import HOST, host_tag
from flows.scheduler import Summary
from flows.servers.recovery import _of_this_machine
from flows.servers.settings import slots_name
from flows.several_machines import MACHINE


def run(state: Any, tags: tuple[str, ...] = (), pid: str | None = None) -> Any:
    return SimpleNamespace(id=uuid4(), state=state, tags=list(tags), infrastructure_pid=pid)


@pytest.mark.parametrize(
    ("found", "mine"),
    [
        (run(Running(), (host_tag(),)), True),
        (run(Running(), (), f"{slots_name()}:77"), True),
        (run(Running(), (f"{HOST}elsewhere",)), False),
        (run(Running(), (), "elsewhere:77"), False),
        (run(Running()), False),
        (run(Pending()), True),
        (run(Pending(), (), "elsewhere:77"), False),
        (run(Running(), (host_tag(), f"{MACHINE}{slots_name()}")), False),
    ],
)
def test_a_run_is_repaired_on_its_own_machine_only(tmp_path: Path, found: Any, mine: bool) -> None:
    assert _of_this_machine(found, tmp_path) is mine


def test_a_run_that_is_noted_here_is_of_this_machine(tmp_path: Path) -> None:
    found = run(Running(), (f"{HOST}elsewhere",))
    (tmp_path / f"{found.id}.json").touch()
    assert _of_this_machine(found, tmp_path)


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


@pytest.mark.parametrize("made", ["paper", "suite"])
def test_a_run_is_noted_while_it_mirrors_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    client, identity, seen = Client(), str(uuid4()), []
    note = tmp_path / "flow-runs" / f"{identity}.json"
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(tmp_path))
    monkeypatch.setattr(prefect.runtime.flow_run, "id", identity, raising=False)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: client)

    def submit(module: str, *_: object) -> Any:
        seen.append((module, note.exists()))
        return SimpleNamespace(wait=lambda: None, state=SimpleNamespace(is_completed=lambda: True))

    module: Any = {"paper": paper, "suite": suite}[made]
    monkeypatch.setattr(module, "run_stale", lambda *_, **__: Summary())
    monkeypatch.setattr(module, "follow_up", SimpleNamespace(submit=submit))
    monkeypatch.setattr(module, "get_run_logger", lambda: SimpleNamespace(info=lambda *_: None))
    monkeypatch.setattr(module.plan, "pipeline_files", lambda *_, **__: [])
    monkeypatch.setattr(module.plan, "suite_files", lambda *_, **__: [])
    choice: dict[str, Any] = {"full": False, "seeds": (), "scale": "testbed", "report": True, "sync": True}
    if made == "paper":
        paper.run_paper("segment", rows=(), root=str(tmp_path), **choice)
    else:
        monkeypatch.setattr(suite.plan, "suite_papers", lambda *_, **__: ["segment"])
        suite.run_suite(tmp_path, **choice)
    assert seen == [("tasks.tracking", True), ("tasks.report", True)]
    assert not note.exists()
    assert client.tags == ("mine", host_tag())
    assert run_notes.HOST in host_tag()
