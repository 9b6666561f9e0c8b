"""A Prefect work pool as the place of a run's stages: each stale stage is a flow run of the deployment `stage`.

The run's flow is the coordinator. It plans, orders and sums up as on one machine, and holds no stage's process. Prefect
queues the flow runs, hands them to workers, shows them below the coordinator's run, and cancels them with it. Results
travel by a DVC remote.

1. A stage's flow run has the key of the stage's result as a tag, and as its idempotency key with the number of runs of
   that key that ended before. A coordinator that starts again, or a second one, finds the flow run and waits for it.
2. A flow run whose machine died sends no heartbeats: an automation of Prefect makes it crashed. The coordinator's
   retries start it again, on any worker.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import httpx
from prefect.deployments import run_deployment

from flows.flow_runs import BEATING, PASSING, crash_silent_runs
from flows.slots import Grant, Slots
from flows.stage_run import RunningStages, StageDone, StageFailed
from flows.worker import PROCESS, code_of, queue_of, require_prefect_server, stage
from rlhf_core.errors import RewardsmithError
from tasks.dvc.remote import RemoteFailed
from tasks.dvc.stage_results import RAN, StageResults
from tasks.graph.stages import Stage
from tasks.running.commit import commit_of

Answer = TypeVar("Answer")
#: Seconds between looks at a stage's flow run.
POLL_SECONDS = 2.0
#: Seconds that a stage waits for a server or a remote that does not answer.
LOST_SECONDS = 600.0
#: Stages in flight in a pool that has no concurrency limit.
IN_FLIGHT = 100
#: Prefix of the tag of a stage's flow run; the rest is the key of its result.
KEY = "key:"
#: Docker's request for GPUs. Asked for some, Docker gives every container the first ones; so a container sees all, and
#: the machine's limits give it its own.
ALL_GPUS = {"driver": "nvidia", "count": -1, "capabilities": [["gpu"]]}


def job_variables(kind: str, needs: Mapping[str, float], commit: str) -> dict[str, Any]:
    """Returns a stage's resources in the variables of a pool's template, `infra/prefect/`; a process takes its own
    from the machine's slots.

    A container makes its own clone at the run's commit, from the image that REWARDSMITH_IMAGE names, if it is set.

    Args:
        kind: type of the pool: process, docker or kubernetes.
    """
    cores, gpus = int(needs.get("cores", 1)), int(needs.get("gpus", 0))
    memory = max(1, round(needs.get("memory_gb", 1)))
    if kind == PROCESS:
        return {"env": {**BEATING}}
    made: dict[str, Any] = {"env": BEATING | {"REWARDSMITH_COMMIT": commit}}
    if image := os.environ.get("REWARDSMITH_IMAGE"):
        made["image"] = image
    if kind == "docker":
        requests = [ALL_GPUS] if gpus else []
        return made | {"nano_cpus": cores * 10**9, "mem_limit": f"{memory}g", "device_requests": requests}
    return made | {"cpu": str(cores), "gpus": str(gpus), "memory": f"{memory}Gi"}


class PoolSlots(Slots):
    """Places for stages in flight: as many as the pool's concurrency limit. Its workers have the cores and GPUs."""

    def __init__(self, count: int) -> None:
        super().__init__(count, (), 0)

    def take(self, needs: Mapping[str, float]) -> Grant | None:
        return super().take({"cores": 1})


class WorkPool:
    """A work pool that runs a run's stages, and the DVC remote by which their results come.

    Args:
        root: the coordinator's clone.
        name: the work pool.
        remote: the DVC remote.
        stages: every stage of the run, current or not, in an order that runs.

    Raises:
        RewardsmithError: no server, pool or fitting worker, a clone that is not committed, a remote that is unknown or
            not writable.
    """

    def __init__(self, root: Path, name: str, remote: str, stages: Mapping[str, Stage]) -> None:
        from prefect.client.orchestration import get_client

        require_prefect_server()
        self.root, self.name, self.code, self.commit = root, name, code_of(root), commit_of(root)
        self.client = get_client(sync_client=True)
        self.kind, places = self._find()
        self.slots = PoolSlots(places)
        self._check_workers([s for s in stages.values() if s.state == "run"])
        with ExitStack() as held:
            self.results = held.enter_context(closing(StageResults(root, stages, remote)))
            assert self.results.remote is not None
            self.remote = self.results.remote.name
            self.results.remote.check()
            self.results.push([a for a, s in stages.items() if s.state == "current"])
            self.deployment = self._deploy()
            self.close = held.pop_all().close

    def __str__(self) -> str:
        return f"pool '{self.name}'"

    def run(self, stage: Stage, grant: Grant, running: RunningStages, log: Any) -> StageDone:
        """Brings one stage's result here: from the remote, else from a flow run in the pool.

        Args:
            running: says when the coordinator ends; the flow run goes on then.

        Raises:
            StageFailed: the stage failed or its worker died, or the server or the remote is silent for LOST_SECONDS.
        """
        address = stage.address
        if known := self._patiently(running, lambda: self.results.restored(address)):
            self._patiently(running, lambda: self.results.push([address]))
            return StageDone(known, 0.0)
        run = self._flow_run(stage, log)
        while not (run.state and run.state.is_final()):
            if running.cancelled:
                raise StageFailed(f"stage {address} goes on in pool '{self.name}'", exit_code=1, retry=False)
            time.sleep(POLL_SECONDS)
            run = self._patiently(running, partial(self.client.read_flow_run, run.id))
        state, where = run.state, f"flow run {run.name} in pool '{self.name}'"
        if state.is_completed():
            if self._patiently(running, lambda: self.results.restored(address)):
                return StageDone(state.message or RAN, round(run.total_run_time.total_seconds(), 2))
            text = f"{where} is completed, and remote '{self.remote}' has no result of it"
            raise StageFailed(f"stage {address} failed: {text}", exit_code=1, retry=True)
        if state.is_failed():
            raise StageFailed(state.message or f"{where} failed", exit_code=1, retry=state.name == PASSING)
        lost = f"stage {address} was {'cancelled' if state.is_cancelled() else 'lost'}: {where}: {state.message}"
        raise StageFailed(lost, exit_code=1, retry=not state.is_cancelled())

    def log_of(self, stage: Stage) -> str:
        """Returns where the log of a stage is, in words."""
        return f"the flow run of {stage.address} in pool '{self.name}'"

    def _flow_run(self, one: Stage, log: Any) -> Any:
        """Returns the flow run of a stage: the one that is not over, else a new one."""
        from prefect.client.schemas.filters import FlowRunFilter

        key = self.results.key(one.address)
        tag = f"{KEY}{key[:32]}"
        found = self.client.read_flow_runs(flow_run_filter=FlowRunFilter.model_validate({"tags": {"all_": [tag]}}))
        for run in found:
            if run.state is not None and not run.state.is_final():
                log.info("%s is %s already: flow run %s", one.address, str(run.state.name).lower(), run.name)
                return run
        needs = {"address": one.address, "name": one.file_name, "needs": dict(one.needs), "remote": self.remote}
        return run_deployment(
            self.deployment,
            parameters={**needs, "given": {above: self.results.entry(above) for above in one.upstream}, "key": key},
            flow_run_name=one.address,
            timeout=0,
            tags=[tag, f"commit:{self.commit[:10]}"],
            idempotency_key=f"{key}-{len(found)}",
            work_queue_name=self._queue(one),
            job_variables=job_variables(self.kind, one.needs, self.commit),
        )

    def _patiently(self, running: RunningStages, ask: Callable[[], Answer]) -> Answer:
        """Returns the answer of a server or remote, which is asked again while it does not answer.

        Raises:
            StageFailed: it has been silent for LOST_SECONDS, or the coordinator ends.
        """
        since = time.monotonic()
        while True:
            try:
                return ask()
            except (RemoteFailed, httpx.HTTPError) as error:
                if running.cancelled or time.monotonic() - since > LOST_SECONDS:
                    raise StageFailed(str(error), exit_code=1, retry=False) from error
                time.sleep(POLL_SECONDS)

    def _find(self) -> tuple[str, int]:
        """Returns the pool's type and its places.

        Raises:
            RewardsmithError: there is no such pool, or it never starts a stage.
        """
        from prefect.exceptions import ObjectNotFound

        try:
            pool = self.client.read_work_pool(self.name)
        except ObjectNotFound:
            raise RewardsmithError(
                f"the Prefect server has no work pool '{self.name}'. `rewardsmith worker --pool {self.name}` on each "
                "machine makes it and serves it"
            ) from None
        if pool.concurrency_limit == 0:
            raise RewardsmithError(f"work pool '{self.name}' has the concurrency limit 0: nothing would ever start")
        return pool.type, IN_FLIGHT if pool.concurrency_limit is None else pool.concurrency_limit

    def _queue(self, one: Stage) -> str | None:
        """Returns the queue for a stage; containers take their code from the image and their GPUs from the job."""
        return queue_of(self.code, int(one.needs.get("gpus", 0))) if self.kind == PROCESS else None

    def _check_workers(self, stale: list[Stage]) -> None:
        """Refuses a run of which no worker would take a stage.

        Raises:
            RewardsmithError: names the stage, and which workers there are.
        """
        from prefect.client.schemas.objects import WorkQueueStatus

        queues = self.client.read_work_queues(work_pool_name=self.name)
        ready = {queue.name: queue.description or "" for queue in queues if queue.status == WorkQueueStatus.READY}
        for one in stale:
            if (wanted := self._queue(one)) is None and not ready:
                raise RewardsmithError(f"no worker serves the work pool '{self.name}'; start one (docs/containers.md)")
            if wanted is not None and wanted not in ready:
                raise RewardsmithError(
                    f"no worker of pool '{self.name}' can run stage {one.address}: it needs {self.code} and "
                    f"{int(one.needs.get('gpus', 0))} GPU(s). Workers are at: "
                    f"{'; '.join(sorted({*filter(None, ready.values())})) or 'none'}. Start "
                    f"`rewardsmith worker --pool {self.name}` in a clone at that commit, on a machine with the GPUs"
                )

    def _deploy(self) -> Any:
        """Returns the id of the pool's deployment of the flow of a stage, which it brings up to date."""
        from prefect.utilities.callables import parameter_schema

        flow = self.client.create_flow_from_name(stage.name)
        made = self.client.create_deployment(
            flow,
            name=self.name,
            description="One stage of a run with `--pool`. Runs begin it; it is not for people.",
            work_pool_name=self.name,
            entrypoint=f"{stage.fn.__module__}.{stage.fn.__name__}",
            pull_steps=[],
            parameter_openapi_schema=parameter_schema(stage).model_dump_for_openapi(),
            enforce_parameter_schema=True,
            tags=["stage"],
        )
        begin = self.kind == PROCESS  # containers pull images first
        crash_silent_runs(self.client, f"stages in {self.name}", deployment=made, begin=begin)
        return made
