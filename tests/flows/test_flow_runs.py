"""Runs whose process died, against a stand-in of Prefect's client."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect.states import Cancelling, Running

from flows import flow_runs
from flows.flow_runs import crash_dead_runs
from tasks.running.platform_state import PLATFORM, SERVER


class Client:
    """Prefect's client of one run."""

    def __init__(self, state: Any) -> None:
        self.run, self.set = SimpleNamespace(id=uuid4(), name="own", state=state), list[str]()

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
