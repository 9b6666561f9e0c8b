"""A worker of this machine for a Prefect work pool (`rewardsmith worker --pool NAME` in a clone), and the flow of one
stage, which a coordinator starts (`flows/work_pool.py`) and Prefect's process worker takes.

The stage runs in the worker's clone, which REWARDSMITH_TREE names, within the machine's slots. Its inputs come from the
DVC remote and its result goes there. The clone belongs to the worker while it lives: no run begins there.

All machines of a run have the same code: one commit, nothing uncommitted, the same versions. A worker serves the queues
of its code in the work pool, one for each number of GPUs that it can give; a run's stages go to the queues of the run's
code. So no stage begins on a machine that would compute something else.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import platform
import signal
import socket
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed

from flows.flow_runs import PASSING
from flows.slots import granted, make_limits
from flows.stage_run import Command, RunningStages, StageFailed, run_stage
from flows.working_tree import end_orphans, tidy
from rlhf_core.errors import RewardsmithError
from tasks.dvc.remote import RemoteFailed
from tasks.dvc.stage_results import StageResults
from tasks.graph import dvc_files as graph
from tasks.running import machine
from tasks.running.artifacts import RECORDED_PACKAGES
from tasks.running.commit import changed_since, commit_of, listed
from tasks.running.locks import in_turn, only_scheduler

#: Names the clone of a machine's worker, in its environment; the working directory without it, as in containers.
TREE = "REWARDSMITH_TREE"
#: Prefect's type of a pool whose workers start processes.
PROCESS = "process"
#: Seconds between looks for stages; Prefect's usual ten would be felt at every stage.
POLL_SECONDS = "3"


def require_prefect_server() -> None:
    """Refuses the temporary server that a run without a platform starts for itself.

    Raises:
        RewardsmithError: PREFECT_API_URL is not set.
    """
    from prefect.settings import PREFECT_API_URL

    if not PREFECT_API_URL.value():
        raise RewardsmithError(
            "a work pool needs a Prefect server that all its machines reach: set PREFECT_API_URL and "
            "PREFECT_API_AUTH_STRING to it (`rewardsmith up` starts one, docs/cluster.md)"
        )


def code_of(root: Path) -> str:
    """Returns the commit of a clone and this machine's versions as one line.

    Raises:
        RewardsmithError: its code or parameters are not committed, so other machines would run something else.
    """
    commit = commit_of(root)
    changed = changed_since(root, commit) if commit else ["no commit"]
    if changed:
        raise RewardsmithError(
            f"this clone differs from its commit in {listed(changed)}: other machines would run something else under "
            "the same name. Commit (and push, and pull there), or run without --pool"
        )
    versions = [
        f"python {platform.python_version()}",
        *(f"{name} {metadata.version(name)}" for name in RECORDED_PACKAGES),
    ]
    return ", ".join([f"commit {commit[:10]}", *versions])


def queue_of(code: str, gpus: int) -> str:
    """Returns the name of the work queue for stages of a code that need so many GPUs."""
    return f"{hashlib.sha256(code.encode()).hexdigest()[:16]}-{gpus}-gpus"


def prepare(root: Path, address: str, *, remote: str, given: Mapping[str, Any], key: str) -> None:
    """Brings this clone into the state that the stage needs: its pipeline files, and its inputs.

    Args:
        remote: the DVC remote of the run.
        given: the results that the stage reads, by address (`StageResults.entry`).
        key: of the stage's result, from the coordinator.

    Raises:
        RewardsmithError: this clone gives the result another key.
    """
    files = {one.rpartition(":")[0] for one in (address, *given)}
    with in_turn(root / ".work" / "prepare.lock", "another stage prepares this clone"):
        end_orphans(root)
        if folders := [Path(file).parent for file in sorted(files) if file]:
            graph.write(root, folders)
        with closing(StageResults(root, [address, *given], remote)) as results:
            results.take_inputs(given)
            if (own := results.key(address)) != key:
                raise RewardsmithError(
                    f"stage {address} has the key {own[:10]} in this worker's clone and {key[:10]} in the run's: a "
                    "file that it reads differs. Commit it, and bring both clones to that commit"
                )


@flow(name="stage", flow_run_name="{address}", persist_result=False)
def stage(address: str, name: str, needs: dict[str, float], remote: str, given: dict[str, Any], key: str) -> State[Any]:
    """Runs one stage (`address`, `name` as a file name) of a run on this machine; see `prepare`."""
    root = Path(os.environ.get(TREE, ".")).resolve()
    try:
        prepare(root, address, remote=remote, given=given, key=key)
        with granted(address, needs) as grant, closing(StageResults(root, [address], remote)) as results:
            command = Command(results.command(address), address, name, grant.environment())
            done = run_stage(root, command, results, running=RunningStages(), log=get_run_logger().info)
            results.push([address])
    except RewardsmithError as failure:
        passing = isinstance(failure, RemoteFailed) or (isinstance(failure, StageFailed) and failure.retry)
        return Failed(message=str(failure), name=PASSING if passing else "Failed")
    return Completed(message=done.outcome)


def register(client: Any, pool: str, code: str) -> list[str]:
    """Makes the pool if there is none, this machine's limits, and the queues of its code, whose names it returns.

    Raises:
        RewardsmithError: the pool is of containers, whose workers are Prefect's own.
    """
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name=pool, type=PROCESS))
    found = client.read_work_pool(pool)
    if found.type != PROCESS:
        raise RewardsmithError(
            f"work pool '{pool}' is of type {found.type}; its workers are Prefect's: `prefect worker start --pool "
            f"{pool} --type {found.type}` (docs/containers.md)"
        )
    make_limits(client, os.environ["REWARDSMITH_SLOTS"])
    queues = []
    for gpus in range(len(machine.gpus()) + 1):
        queues.append(queue_of(code, gpus))
        with suppress(ObjectAlreadyExists):
            client.create_work_queue(queues[-1], description=f"{code}, {gpus} GPU(s)", work_pool_name=pool)
    return queues


def serve(pool: str, limit: int | None = None) -> None:
    """Takes stages until a signal ends it; stages that run then go on to their end.

    Args:
        pool: the Prefect work pool; made if the server has none.
        limit: stages at once; this machine's cores unless given.

    Raises:
        RewardsmithError: no server, a clone that is not committed, or another run or worker in it.
    """
    from prefect.client.orchestration import get_client
    from prefect.workers.process import ProcessWorker

    os.environ.setdefault("PREFECT_WORKER_QUERY_SECONDS", POLL_SECONDS)
    os.environ.setdefault("PREFECT_WORKER_ENABLE_CANCELLATION", "true")
    require_prefect_server()
    root = Path.cwd().resolve()
    code = code_of(root)
    os.environ.setdefault("REWARDSMITH_SLOTS", socket.gethostname())
    os.environ[TREE] = str(root)
    with only_scheduler(root):
        for line in tidy(root):
            print(line)
        with get_client(sync_client=True) as client:
            queues = register(client, pool, code)
        name = f"{socket.gethostname()}-{os.getpid()}"
        worker = ProcessWorker(work_pool_name=pool, work_queues=queues, name=name, limit=limit or machine.cores())
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
        try:
            asyncio.run(worker.start(printer=partial(print, flush=True)))
        except KeyboardInterrupt:
            print(f"worker {name} stopped")
