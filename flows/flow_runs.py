"""Flow runs as processes: which of them died.

`rewardsmith up` marks as crashed the worker's runs whose process is gone, and automations of the server those that send
no heartbeats, wherever they ran.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import psutil

from flows import DEFAULTS
from flows.working_tree import RUN, end_processes
from tasks.running.platform_state import PLATFORM, lives

#: Set in the process of a run that a worker started.
STARTED = "PREFECT__FLOW_RUN_ID"
#: Environment of a flow run that sends heartbeats, and seconds without one until it counts as dead.
BEATING = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": DEFAULTS["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"]}
DEAD_SECONDS = 120
#: Name of the state of a run whose failure may pass, so that its coordinator tries again.
PASSING = "PassingFailure"
#: A run that is asked to end has this long for its stages.
ENDING_SECONDS = 60.0


def run_processes(platform: Path) -> dict[psutil.Process, str]:
    """Returns the processes of a platform's runs on this machine, each with the id of a flow run that a worker started,
    or an empty text. Their stages are not among them."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            environment = process.environ()
            identity = environment.get(STARTED, "")
            of_platform = environment.get(PLATFORM) == str(platform.resolve()) and RUN not in environment
            if of_platform and (identity or "flows" in process.cmdline()) and lives(process):
                found[process] = identity
    return found


def crash_dead_runs(client: Any, platform: Path, pool: str) -> list[str]:
    """Marks as crashed the runs of a pool whose process is gone; returns what was done, in words."""
    from prefect.client.schemas.filters import FlowRunFilter, WorkPoolFilter
    from prefect.states import Cancelled, Crashed

    chosen = FlowRunFilter.model_validate({"state": {"type": {"any_": ["RUNNING", "CANCELLING"]}}})
    of_pool = WorkPoolFilter.model_validate({"name": {"any_": [pool]}})
    alive, done = {*run_processes(platform).values()}, []
    for run in client.read_flow_runs(flow_run_filter=chosen, work_pool_filter=of_pool):
        if str(run.id) not in alive:
            kind, what = (Cancelled, "cancelled") if run.state.is_cancelling() else (Crashed, "crashed")
            client.set_flow_run_state(run.id, kind(message="its process was killed"), force=True)
            done.append(f"run {run.name} is {what}: its process was killed")
    return done


def crash_silent_runs(
    client: Any, what: str, *, deployment: UUID | None = None, seconds: int = DEAD_SECONDS, begin: bool = True
) -> None:
    """Makes the automation that crashes flow runs which send no heartbeats.

    Args:
        what: the runs in words, for the automation's name.
        deployment: whose runs; None for all of the server.
        seconds: without a heartbeat.
        begin: whether it counts from a worker's taking a run, else from the run's start.
    """
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

    name, related = f"{what} without a heartbeat", dict[str, str | list[str]]()
    if client.read_automations_by_name(name):
        return
    if deployment is not None:
        related = {"prefect.resource.id": [f"prefect.deployment.{deployment}"]}
    beats = {"Running", "heartbeat"}
    ends = {"Completed", "Failed", PASSING, "Alarm", "Crashed", "Cancelled", "AwaitingRetry", "Scheduled", "Paused"}
    trigger = EventTrigger(
        after={f"prefect.flow-run.{event}" for event in (beats | {"Pending"} if begin else beats)},
        expect={f"prefect.flow-run.{event}" for event in beats | ends},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        match_related=related,
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=seconds),
    )
    message = f"its machine died: no heartbeat for {seconds} s"
    action = ChangeFlowRunState(name="Crashed", state=StateType.CRASHED, message=message, force=False)
    client.create_automation(AutomationCore(name=name, trigger=trigger, actions=[action]))


def end_runs(platform: Path) -> list[str]:
    """Ends a platform's runs, which end their stages; returns what was ended, in words. It needs no server."""
    runs = run_processes(platform)
    end_processes(runs, ENDING_SECONDS)
    return [f"{len(runs)} run(s)"] if runs else []
