"""A run in a work pool: a coordinator and two workers in clones of their own, one Prefect server, one DVC remote."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
import yaml
from prefect.client.schemas.objects import WorkQueue, WorkQueueStatus
from prefect.states import Cancelled, Completed, Crashed, Failed

from flows.flow_runs import PASSING
from flows.slots import Grant
from flows.stage_run import RunningStages, StageFailed
from flows.work_pool import ALL_GPUS, WorkPool, job_variables
from flows.worker import code_of, queue_of, require_prefect_server
from rlhf_core.errors import RewardsmithError
from tasks.graph.stages import Stage
from tests import small_repository
from tests.chaos import stages
from tests.small_repository import command
from tests.team import POOL, Server, Team, calls, differing, kill, stage_runs


def locked(root: Path) -> dict[str, object]:
    return dict(yaml.safe_load((root / "dvc.lock").read_text())["stages"])


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Prefect server of its own: workers that start write at once with the services of a server that others use."""
    made = Server(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", made.url)
    yield
    made.close()


@pytest.mark.platform
@pytest.mark.timeout(1200)
def test_a_pool_ends_like_one_machine(tmp_path: Path, server: None) -> None:
    team = Team(tmp_path)
    main, first, second = (team.clone(name) for name in ("main", "first", "second"))
    machines: dict[Path, subprocess.Popen[str]] = {}
    try:
        machines |= {clone: team.worker(clone) for clone in (first, second)}
        machines[main] = coordinator = team.coordinator(main)
        while coordinator.poll() is None:
            assert not stages(main), "the coordinator holds a stage's process"
            time.sleep(0.5)
        assert coordinator.returncode == 0, team.log(main)
    finally:
        for clone, process in machines.items():
            if process.poll() is None:
                kill(process, clone)

    for run in stage_runs():
        assert (run["work_pool_name"], run["state_name"]) == (POOL, "Completed")
        assert run["labels"]["prefect.worker.name"], "the worker that took it"
    alone = team.clone("alone")
    command("dvc", "repro", "-q", root=alone)
    assert not calls(main)
    assert sorted([*calls(first), *calls(second)]) == sorted(calls(alone)), "no stage ran twice"
    assert not differing(alone, main)
    assert "up to date" in command("dvc", "status", root=main).stdout

    third = team.clone("third")
    command("dvc", "repro", "-q", "--pull", root=third)
    assert not calls(third), "the remote holds every result and run-cache entry"
    assert locked(third) == locked(main)
    assert not team.half_written(), "something half-written is on the remote"


def test_a_pool_needs_a_server_and_a_committed_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    with pytest.raises(RewardsmithError, match="set PREFECT_API_URL"):
        require_prefect_server()
    root = Team(tmp_path).clone("mine")
    assert code_of(root).startswith("commit ")
    small_repository.change_entry(root / "params" / "segment" / "rows.yaml", "bandit", title="other")
    with pytest.raises(RewardsmithError, match=r"rows\.yaml: other machines would run something else"):
        code_of(root)


@pytest.fixture
def pool(tmp_path: Path) -> WorkPool:
    """A work pool of processes that no server has, for the coordinator's decisions."""
    made = object.__new__(WorkPool)
    made.root, made.name, made.kind, made.remote = tmp_path, POOL, "process", "team"
    made.code = "commit aaaaaaaaaa, python 3.11.7"
    return made


def stale(gpus: int) -> Stage:
    return Stage(
        "policy-a", "policy", "segment", "a", 0, "", ("out/result",), (), "run", (), {"cores": 1, "gpus": gpus}
    )


@pytest.mark.parametrize(
    ("queues", "gpus", "refusal"),
    [
        ({}, 0, "Workers are at: none"),
        ({"commit aaaaaaaaaa, python 3.11.7": "READY"}, 0, ""),
        ({"commit aaaaaaaaaa, python 3.11.7": "NOT_READY"}, 0, "Workers are at: none"),
        (
            {"commit aaaaaaaaaa, python 3.11.7": "READY"},
            1,
            r"it needs commit a+, python 3.11.7 and 1 GPU\(s\)",
        ),
        ({"commit aaaaaaaaaa, python 3.11.8": "READY"}, 0, "Workers are at: commit aaaaaaaaaa, python 3.11.8"),
    ],
)
def test_a_stage_that_no_worker_can_run_is_named_with_the_workers_there_are(
    pool: WorkPool, queues: dict[str, str], gpus: int, refusal: str
) -> None:
    made = [
        WorkQueue(name=queue_of(code, 0), description=code, work_pool_id=uuid4(), status=WorkQueueStatus(status))
        for code, status in queues.items()
    ]
    pool.client = SimpleNamespace(read_work_queues=lambda work_pool_name: made)  # type: ignore[assignment]
    with pytest.raises(RewardsmithError, match=refusal) if refusal else nullcontext():
        pool._check_workers([stale(gpus)])


@pytest.mark.parametrize(
    ("state", "message", "retry"),
    [
        (Failed(message="stage policy-a failed: x"), "stage policy-a failed: x", False),
        (Failed(message="remote 'team' is away", name=PASSING), "remote 'team' is away", True),
        (Crashed(message="no heartbeat"), "stage policy-a was lost: flow run own in pool 'gpus': no heartbeat", True),
        (Cancelled(message="by a person"), "stage policy-a was cancelled: .*: by a person", False),
        (Completed(), "is completed, and remote 'team' has no result of it", True),
    ],
)
def test_the_end_of_a_flow_run_says_whether_another_one_can_help(
    pool: WorkPool, monkeypatch: pytest.MonkeyPatch, state: Any, message: str, retry: bool
) -> None:
    ended, known = SimpleNamespace(name="own", state=state, total_run_time=timedelta(seconds=1)), [None, None]
    monkeypatch.setattr(pool, "_flow_run", lambda *_: ended)
    pool.results = SimpleNamespace(restored=lambda _: known.pop(0), push=lambda _: None)  # type: ignore[assignment]
    with pytest.raises(StageFailed, match=message) as failure:
        pool.run(stale(0), Grant(1, (), 0.0), RunningStages(), None)
    assert failure.value.retry is retry
    ended.state, known[:] = Completed(), [None, "restored"]
    assert pool.run(stale(0), Grant(1, (), 0.0), RunningStages(), None).outcome == "ran"


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ("process", {}),
        ("docker", {"nano_cpus": 2 * 10**9, "mem_limit": "24g", "device_requests": [ALL_GPUS], "image": "own:1.0"}),
        ("kubernetes", {"cpu": "2", "gpus": "1", "memory": "24Gi", "image": "own:1.0"}),
    ],
)
def test_a_stages_resources_are_variables_of_the_job(
    kind: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REWARDSMITH_IMAGE", "own:1.0")
    made = job_variables(kind, {"cores": 2, "gpus": 1, "memory_gb": 24}, "c" * 40)
    environment = made.pop("env")
    assert environment.pop("PREFECT_FLOWS_HEARTBEAT_FREQUENCY") == "30"
    assert environment == ({} if kind == "process" else {"REWARDSMITH_COMMIT": "c" * 40})
    assert made == wanted


def test_a_container_without_gpus_or_an_image_of_the_run_takes_the_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REWARDSMITH_IMAGE", raising=False)
    made = job_variables("docker", {"cores": 1}, "c" * 40)
    assert made["device_requests"] == []
    assert "image" not in made
