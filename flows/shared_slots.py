"""Slots that all runs of a machine share: Prefect limits, one of all cores, one of its memory, one per GPU.

    python -m flows.shared_slots    creates those of this machine under the name REWARDSMITH_SLOTS

`rewardsmith up` creates them, the command where something else starts the worker; a run of a platform takes them
strictly: a limit that is missing stops it. They are leases: what a killed run held is free again after a minute, or at
the next `rewardsmith up`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flows.leases import Leases
from flows.slots import Grant, Slots
from rlhf_core.errors import RewardsmithError
from tasks.running import machine

#: Seconds between looks at limits that other runs hold.
POLL_SECONDS = 1.0
REMEDY = "Run `rewardsmith up`, or next to a worker in a container `python -m flows.shared_slots`, which creates it"


def limits(name: str, slots: Slots) -> dict[str, int]:
    """Returns the limits of a machine by their names."""
    found = {f"{name}-cores": slots.cores, f"{name}-memory-gb": max(1, int(slots.memory_gb))}
    return found | {f"{name}-gpu-{gpu}": 1 for gpu in slots.gpus}


def make_limits(client: Any, name: str) -> dict[str, int]:
    """Creates this machine's limits on a Prefect server, or brings them to what it has; returns them."""
    found = limits(name, Slots(machine.cores(), machine.gpus(), machine.memory_gb()))
    for limit, count in found.items():
        client.upsert_global_concurrency_limit_by_name(limit, count)
    return found


class SharedSlots(Slots):
    """The machine's slots, each also taken from the limit that all runs share.

    Raises:
        RewardsmithError: a limit is missing.
    """

    def __init__(self, slots: Slots, name: str) -> None:
        super().__init__(slots.cores, slots.gpus, slots.memory_gb)
        self.name = name
        self._leases = Leases()
        self._of_grants: dict[int, list[UUID]] = {}
        self._check_limits(limits(name, slots))

    def _check_limits(self, wanted: Mapping[str, int]) -> None:
        from prefect.exceptions import ObjectNotFound

        for name in wanted:
            try:
                self._leases.client.read_global_concurrency_limit_by_name(name)
            except ObjectNotFound:
                raise RewardsmithError(
                    f"the limit '{name}' does not exist on the Prefect server, so nothing would keep jobs apart. "
                    + REMEDY
                ) from None

    def take(self, needs: Mapping[str, float]) -> Grant | None:
        """As `Slots.take`; None too while other runs hold what is needed. Any free GPU serves."""
        grant = super().take(needs)
        if grant is None:
            return None
        leases: list[UUID] = []
        memory = min(math.ceil(grant.memory_gb), max(1, int(self.memory_gb)))
        got = all(
            self._lease(name, count, leases)
            for name, count in ((f"{self.name}-cores", grant.cores), (f"{self.name}-memory-gb", memory))
            if count
        )
        given: list[str] = []
        if got and grant.gpus:
            for gpu in [*grant.gpus, *(g for g in self.gpus if g in self._free_gpus)]:
                if len(given) < len(grant.gpus) and self._lease(f"{self.name}-gpu-{gpu}", 1, leases):
                    given.append(gpu)
            got = len(given) == len(grant.gpus)
        if not got:
            for lease in leases:
                self._leases.give_back(lease)
            super().give_back(grant)
            return None
        grant = self._exchanged(grant, tuple(given))
        self._of_grants[id(grant)] = leases
        return grant

    def _exchanged(self, grant: Grant, given: tuple[str, ...]) -> Grant:
        """Returns the grant with the GPUs that the limits gave instead of those first thought of."""
        with self._lock:
            free = [gpu for gpu in self._free_gpus if gpu not in given] + [g for g in grant.gpus if g not in given]
            self._free_gpus = sorted(free, key=self.gpus.index)
        return Grant(grant.cores, given, grant.memory_gb)

    def give_back(self, grant: Grant) -> None:
        for lease in self._of_grants.pop(id(grant), []):
            self._leases.give_back(lease)
        super().give_back(grant)

    def close(self) -> None:
        """Gives everything back."""
        self._leases.close()

    def _lease(self, name: str, count: int, leases: list[UUID]) -> bool:
        try:
            lease = self._leases.take(name, count)
        except LookupError:
            raise RewardsmithError(f"the limit '{name}' has gone. {REMEDY}") from None
        if lease is None:
            return False
        leases.append(lease)
        return True


def machine_slots(slots: Slots) -> Slots:
    """Returns the slots as they are shared on a platform; as they are without one."""
    name = os.environ.get("REWARDSMITH_SLOTS")
    return SharedSlots(slots, name) if name else slots


def main() -> int:
    """Creates the limits of a machine whose worker something else starts."""
    from prefect.client.orchestration import get_client

    name = os.environ.get("REWARDSMITH_SLOTS")
    if not name:
        print(
            "error: REWARDSMITH_SLOTS is not set; it names this machine's slots, also for the worker", file=sys.stderr
        )
        return 2
    with get_client(sync_client=True) as client:
        for limit, count in make_limits(client, name).items():
            print(f"{limit}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
