"""Work pool: a worker, the coordinator and the server are killed once each; nothing is lost or doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pool_chaos import chaos


@pytest.mark.platform
@pytest.mark.timeout(5400)
def test_a_run_in_a_pool_survives_kills_of_worker_coordinator_and_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "")  # which the round sets
    report = chaos(tmp_path, kills=3, seed=1)
    assert not report.problems
    assert dict(report.kills) == {"worker": 1, "coordinator": 1, "server": 1}
