"""Slots: a core or a GPU is given to one stage at a time.

A run hands out the slots of its machine. On a platform all runs of a machine share them: Prefect limits, one of all
cores, one of its memory, one per GPU. `rewardsmith up` creates these; where something else starts the worker, `python
-m flows.deployments` does, under the name REWARDSMITH_SLOTS. A stage holds them by Prefect's `concurrency`, which
renews them: what a killed run held is free again after a minute. A limit that is missing stops the stage.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.running import machine

#: Seconds between looks at limits that other runs hold.
POLL_SECONDS = 1.0
#: Seconds for which a killed process still holds its slots; Prefect accepts no less.
LEASE_SECONDS = 60.0
#: When a Prefect server was first asked in vain since it last answered, by address.
_SILENT_SINCE: dict[str, float] = {}
REMEDY = "Run `rewardsmith up`, or next to a worker in a container `python -m flows.deployments`, which creates it"


@dataclass(frozen=True)
class Grant:
    """Resources granted to one stage: a number of cores, its own GPUs, and memory in GiB."""

    cores: int
    gpus: tuple[str, ...]
    memory_gb: float

    def environment(self) -> dict[str, str]:
        """Returns the thread counts and visible devices of the stage's processes."""
        threads = str(self.cores)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "REWARDSMITH_THREADS")
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        return dict.fromkeys(names, threads) | devices | ({} if self.gpus else {"DS_ACCELERATOR": "cpu"})


class Slots:
    """The machine's cores, GPUs and memory, handed out and taken back."""

    def __init__(self, cores: int, gpus: Sequence[str], memory_gb: float) -> None:
        self.cores, self.gpus, self.memory_gb = cores, list(gpus), memory_gb
        self._free_cores, self._free_gpus, self._free_memory = cores, list(gpus), memory_gb

    @classmethod
    def of_machine(cls) -> Slots:
        """Returns the slots of this machine, all free."""
        return cls(machine.cores(), machine.gpus(), machine.memory_gb())

    def refuse_impossible(self, stage: str, needs: Mapping[str, float]) -> None:
        """Refuses a stage that this machine can never run.

        Raises:
            RewardsmithError: it needs more GPUs than there are.
        """
        if needs.get("gpus", 0) > len(self.gpus):
            raise RewardsmithError(
                f"stage {stage} needs {needs['gpus']} GPU(s), this machine has {len(self.gpus)}. "
                "Run it on another machine, or declare less under `resources` in params/scales/<scale>/stages.yaml"
            )

    def take(self, needs: Mapping[str, float]) -> Grant | None:
        """Returns a grant of the needs of a stage, at most the whole machine; None while they are not free."""
        cores = int(min(needs.get("cores", 1), self.cores))
        gpus, memory = int(needs.get("gpus", 0)), min(needs.get("memory_gb", 0), self.memory_gb)
        if cores > self._free_cores or gpus > len(self._free_gpus) or memory > self._free_memory:
            return None
        self._free_cores -= cores
        self._free_memory -= memory
        return Grant(cores, tuple(self._free_gpus.pop(0) for _ in range(gpus)), memory)

    def give_back(self, grant: Grant) -> None:
        self._free_cores += grant.cores
        self._free_memory += grant.memory_gb
        self._free_gpus = sorted([*self._free_gpus, *grant.gpus], key=self.gpus.index)


def make_limits(client: Any, name: str) -> None:
    """Creates this machine's limits on a Prefect server, or brings them to what it has."""
    found = {f"{name}-cores": machine.cores(), f"{name}-memory-gb": max(1, int(machine.memory_gb()))}
    for limit, count in {**found, **{f"{name}-gpu-{gpu}": 1 for gpu in machine.gpus()}}.items():
        client.upsert_global_concurrency_limit_by_name(limit, count)


@contextmanager
def shared(
    grant: Grant, cancelled: Callable[[], bool] = lambda: False, patience: float = LEASE_SECONDS
) -> Iterator[Grant]:
    """Holds what a run grants, once no other run of this machine holds it; without a platform at once.

    Args:
        cancelled: says when to wait no longer.
        patience: seconds without a server at the address after which nothing is shared any more; a server that starts
            again has all leases.

    Yields:
        the grant with the GPUs that are held: any free ones serve.

    Raises:
        RewardsmithError: a limit is missing, or the run was cancelled.
    """
    name = os.environ.get("REWARDSMITH_SLOTS")
    if not name:
        yield grant
        return
    while not cancelled():
        if (silent := _silence()) is None:
            with ExitStack() as held:
                if (given := _held(grant, name, held)) is not None:
                    yield given
                    return
        elif silent >= patience:
            yield grant
            return
        time.sleep(POLL_SECONDS)
    raise RewardsmithError("it waited for slots of this machine and was ended with its run")


def _silence() -> float | None:
    """Returns the seconds since nothing listens at the Prefect server's address; None while something does."""
    import httpx

    address, now = os.environ["PREFECT_API_URL"], time.monotonic()
    try:
        with httpx.stream("GET", f"{address}/health", timeout=20, verify=False):
            pass
    except httpx.ConnectError:
        return now - _SILENT_SINCE.setdefault(address, now)
    except httpx.HTTPError:
        pass  # a slow server holds its leases
    _SILENT_SINCE.pop(address, None)
    return None


@contextmanager
def granted(name: str, needs: Mapping[str, float]) -> Iterator[Grant]:
    """Holds the cores, GPUs and memory of this machine that a stage needs; waits for them, and for a server that has
    gone.

    Raises:
        RewardsmithError: the machine never has them.
    """
    slots = Slots.of_machine()
    slots.refuse_impossible(name, needs)
    grant = slots.take(needs)
    assert grant is not None, "nothing else has taken from it"
    with shared(grant, patience=math.inf) as given:
        yield given


def _held(grant: Grant, name: str, held: ExitStack) -> Grant | None:
    """Takes a grant's slots from the limits; returns None where other runs hold some of them."""
    memory = min(math.ceil(grant.memory_gb), max(1, int(machine.memory_gb())))
    wanted = {f"{name}-cores": grant.cores, f"{name}-memory-gb": memory}
    if not all(_take(limit, count, held) for limit, count in wanted.items() if count):
        return None
    given: list[str] = []
    for gpu in machine.gpus():
        if len(given) < len(grant.gpus) and _take(f"{name}-gpu-{gpu}", 1, held):
            given.append(gpu)
    return replace(grant, gpus=tuple(given)) if len(given) == len(grant.gpus) else None


def _take(limit: str, count: int, held: ExitStack) -> bool:
    """Takes slots of a limit; returns whether there were any, and a server that gave them.

    Raises:
        RewardsmithError: there is no such limit.
    """
    import httpx
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
    from prefect.concurrency.sync import concurrency

    slots = concurrency(
        limit, count, max_retries=0, lease_duration=LEASE_SECONDS, strict=True, raise_on_lease_renewal_failure=False
    )
    try:
        slots.__enter__()
    except ConcurrencySlotAcquisitionError as error:
        answer = getattr(error.__cause__, "response", None)
        if isinstance(error.__cause__, httpx.TransportError) or (
            answer is not None and answer.status_code == httpx.codes.LOCKED
        ):
            return False
        if error.__cause__ is not None:
            raise
        raise RewardsmithError(
            f"the limit '{limit}' does not exist on the Prefect server, so nothing would keep jobs apart. {REMEDY}"
        ) from None

    def release(*raised: Any) -> bool:
        with suppress(httpx.TransportError):  # a server that has gone does not hear it; the lease ends
            slots.__exit__(*raised)
        return False

    held.push(release)
    return True
