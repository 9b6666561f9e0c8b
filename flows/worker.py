"""A worker of this machine for a Prefect work pool: `rewardsmith worker --pool NAME` in a clone.

Prefect's process worker takes the stages; this module gives it the clone, the machine's slots, and the queues of the
clone's code. The clone belongs to the worker while it lives: no run begins there.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

from flows.slots import make_limits
from flows.stage import TREE, code_of, queue_of, require_prefect_server
from flows.work_pool import PROCESS
from flows.working_tree import tidy
from rlhf_core.errors import RewardsmithError
from tasks.running import machine
from tasks.running.exclusive import only_scheduler

#: Seconds between looks for stages; Prefect's usual ten would be felt at every stage.
POLL_SECONDS = "3"


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
            asyncio.run(worker.start())
        except KeyboardInterrupt:
            print(f"worker {name} stopped")
