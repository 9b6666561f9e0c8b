"""Deployments that somebody changed, and scheduled runs that were missed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from flows import reevaluate
from tasks.reevaluation.evaluate import reasons
from tasks.tracking.models import Registered
from tests import small_repository

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


@pytest.fixture(scope="module")
def client(prefect_server: str) -> Iterator[SyncPrefectClient]:
    """The server's client; at the end, no deployment is left."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as made:
        yield made
        for deployment in made.read_deployments():
            made.delete_deployment(deployment.id)


@pytest.mark.platform
def test_a_deployment_that_somebody_changed_is_as_declared_after_the_next_start(
    client: SyncPrefectClient, tmp_path: Path
) -> None:
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions

    from flows.deployments import apply, make_pool

    root = small_repository.create(tmp_path)
    name = "suite/train-everything"
    other = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    elsewhere = [{"prefect.deployments.steps.set_working_directory": {"directory": "/nowhere"}}]
    make_pool(client)
    apply(root, client)
    declared = client.read_deployment_by_name(name)
    assert declared.parameters == {"full": True, "root": str(root)}
    changes = (
        DeploymentUpdate(concurrency_limit=3),
        DeploymentUpdate(concurrency_options=other, pull_steps=elsewhere),
        DeploymentUpdate(entrypoint="flows.paper.segment", parameters={"full": True, "root": "/nowhere"}),
    )
    for change in changes:
        client.update_deployment(declared.id, change)
        assert apply(root, client) == [name], change
        found = client.read_deployment_by_name(name)
        assert found.global_concurrency_limit.limit == 1
        for key in ("concurrency_options", "pull_steps", "entrypoint", "parameters"):
            assert getattr(found, key) == getattr(declared, key)
    assert apply(root, client) == []


@pytest.mark.platform
def test_of_runs_that_were_missed_one_evaluates_and_one_that_begins_after_it_finds_nothing_changed(
    client: SyncPrefectClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nights of three days at once, as a worker takes them after two days off, then two more runs."""
    from prefect.flow_engine import run_flow_sync
    from prefect.states import Late, Pending, Scheduled

    from flows.deployments import apply, make_pool

    root = small_repository.create(tmp_path)
    settings = "schedule: {cron: '0 3 1 1 *', timezone: UTC}\nmodels: [{name: segment-policy-a}]\n"
    (root / "params" / "reevaluation.yaml").write_text(settings)
    small_repository.command("git", "add", "-A", root=root)
    small_repository.command("git", "commit", "-qm", "re-evaluation", root=root)
    model = Registered("segment-policy-a", "3", "champion", "run", "digest", "results/testbed/a/result", "policy-a-0")
    record = {"number": 1, "time": 0.0, "digest": "digest", "benchmarks": {}, "judge": {"digest": "judge"}}
    made: list[dict[str, Any]] = []

    def evaluate(*_: object) -> dict[str, Any]:
        why = reasons(made[-1] if made else None, model="digest", benchmarks={}, judge="judge", now=1.0, drift_days=7)
        made.extend([record] if why else [])
        return {"reasons": []}

    monkeypatch.setattr(reevaluate, "evaluate", evaluate)
    monkeypatch.setattr(reevaluate, "open_registry", lambda root: SimpleNamespace(resolve=lambda *_: model))
    monkeypatch.setattr(reevaluate, "send_pending_alerts", lambda *_: (0, []))
    make_pool(client)
    apply(root, client)
    deployment = client.read_deployment_by_name("reevaluate/re-evaluate-models")

    def taken(state: Any) -> FlowRun:
        run = client.create_flow_run_from_deployment(deployment.id, state=state)
        client.set_flow_run_state(run.id, Pending())
        return client.read_flow_run(run.id)

    def run(which: FlowRun) -> str:
        run_flow_sync(reevaluate.reevaluate, flow_run=which, parameters={"root": str(root)})
        return client.read_flow_run(which.id).state.name

    now = datetime.now(UTC)
    first, *others = [taken(Late(scheduled_time=now - timedelta(days=days))) for days in (3, 2, 1)]
    assert [one.state.name for one in (first, *others)] == ["Pending", "Cancelled", "Cancelled"]
    assert run(first) == "Completed"
    assert len(made) == 1, "the missed nights are evaluated once"
    for hours in (20, 0):
        assert run(taken(Scheduled(scheduled_time=now - timedelta(hours=hours)))) == "Completed"
    assert len(made) == 1, "nothing changed since"
