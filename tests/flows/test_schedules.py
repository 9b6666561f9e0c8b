"""Schedules and deployments: clock changes, runs that come too late, a work pool that somebody removed."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest

from flows import reevaluate
from flows.deployments import Deployment, _schedules
from tests import small_repository

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("first", "clock"),
    [(datetime(2027, 3, 26, tzinfo=BERLIN), "02:30 is skipped"), (datetime(2026, 10, 23, tzinfo=BERLIN), "twice")],
)
@pytest.mark.parametrize("hour", [2, 3])
def test_a_clock_change_neither_drops_nor_doubles_a_daily_run(first: datetime, clock: str, hour: int) -> None:
    """The night's run, at 02:30 or 03:30 there, over the days around the change."""
    schedule = {"cron": f"30 {hour} * * *", "timezone": "Europe/Berlin"}
    (made,) = _schedules(Deployment("reevaluate", "", (), schedule=schedule), [])
    from prefect.server.schemas.schedules import CronSchedule

    cron = CronSchedule(**made.schedule.model_dump())
    due = asyncio.run(cron.get_dates(n=20, start=first, end=first + timedelta(days=5)))
    days = [at.astimezone(BERLIN).date() for at in due]
    assert days == [(first + timedelta(days=day)).date() for day in range(5)], clock
    assert due == sorted(set(due))


@pytest.mark.parametrize(("hours", "skipped"), [(-1, False), (0, False), (11, False), (13, True)])
def test_a_run_that_comes_too_late_is_skipped(monkeypatch: pytest.MonkeyPatch, hours: int, skipped: bool) -> None:
    """By the time it was due in UTC, so that a clock set back or changed for summer skips nothing."""
    now = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    due = (now - timedelta(hours=hours)).astimezone(BERLIN)
    monkeypatch.setattr(reevaluate, "flow_run", SimpleNamespace(scheduled_start_time=due))
    assert reevaluate.missed(now) is skipped
    monkeypatch.setattr(reevaluate, "flow_run", SimpleNamespace(scheduled_start_time=None))
    assert not reevaluate.missed(now)


@pytest.mark.platform
def test_a_removed_work_pool_comes_back_and_what_waited_in_it_is_cancelled_with_its_reason(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.testing.utilities import prefect_test_harness

    from flows.deployments import POOL, TREE_QUEUE, apply
    from flows.servers.__main__ import make_pool
    from flows.servers.recovery import cancel_stranded

    root = small_repository.create(tmp_path)
    with prefect_test_harness(server_startup_timeout=300), get_client(sync_client=True) as client:
        make_pool(client)
        apply(root, client)
        name = "segment/rewardsmith"
        assert apply(root, client) == [], "nothing changed, and runs that are due stay"
        waiting = client.create_flow_run_from_deployment(client.read_deployment_by_name(name).id)
        assert cancel_stranded(client) == []
        client.delete_work_pool(POOL)
        assert client.read_deployment_by_name(name).work_pool_name is None
        make_pool(client)
        assert cancel_stranded(client) == [
            f"run {waiting.name} is cancelled: its work pool had been removed; start it again"
        ]
        apply(root, client)
        found = client.read_deployment_by_name(name)
        assert (found.work_pool_name, found.work_queue_name) == (POOL, TREE_QUEUE)
        assert client.read_flow_run(waiting.id).state.is_cancelled()


@pytest.mark.platform
def test_a_deployment_that_somebody_changed_is_as_declared_after_the_next_start(tmp_path: Path) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import DeploymentUpdate
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
    from prefect.testing.utilities import prefect_test_harness

    from flows.deployments import apply
    from flows.servers.__main__ import make_pool

    root = small_repository.create(tmp_path)
    name = "suite/rewardsmith"
    other = ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.CANCEL_NEW)
    elsewhere = [{"prefect.deployments.steps.set_working_directory": {"directory": "/nowhere"}}]
    with prefect_test_harness(server_startup_timeout=300), get_client(sync_client=True) as client:
        make_pool(client)
        apply(root, client)
        declared = client.read_deployment_by_name(name)
        assert declared.parameters == {"full": True, "root": str(root)}
        changes = (
            DeploymentUpdate(concurrency_limit=None),
            DeploymentUpdate(concurrency_limit=3),
            DeploymentUpdate(concurrency_options=other),
            DeploymentUpdate(pull_steps=elsewhere),
            DeploymentUpdate(entrypoint="flows.segment.segment"),
            DeploymentUpdate(parameters={"full": True, "root": "/nowhere"}),
        )
        for change in changes:
            client.update_deployment(declared.id, change)
            assert apply(root, client) == [name], change
            found = client.read_deployment_by_name(name)
            assert found.global_concurrency_limit.limit == 1
            for key in ("concurrency_options", "pull_steps", "entrypoint", "parameters"):
                assert getattr(found, key) == getattr(declared, key)
        client._client.delete(f"/v2/concurrency_limits/{found.global_concurrency_limit.id}")
        assert apply(root, client) == [name]
        assert client.read_deployment_by_name(name).global_concurrency_limit.limit == 1
        assert apply(root, client) == []
