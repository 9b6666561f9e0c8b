"""Slots that all runs of a machine share: Prefect limits, one of all cores, one of its memory, one per GPU.

`rewardsmith up` creates them; a run of a platform takes them strictly: a limit that is missing stops it. They are
leases: what a killed run held is free again after LEASE_SECONDS, or at the next `rewardsmith up`.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from flows.slots import Grant, Slots
from rlhf_core.errors import RewardsmithError

LEASE_SECONDS = 60.0
RENEW_SECONDS = 15.0
#: Seconds between looks at limits that other runs hold.
POLL_SECONDS = 1.0


def limits(name: str, slots: Slots) -> dict[str, int]:
    """The limits of a machine by their names."""
    found = {f"{name}-cores": slots.cores, f"{name}-memory-gb": max(1, int(slots.memory_gb))}
    return found | {f"{name}-gpu-{gpu}": 1 for gpu in slots.gpus}


class SharedSlots(Slots):
    """The machine's slots, each also taken from the limit that all runs share.

    Raises:
        RewardsmithError: a limit is missing.
    """

    def __init__(self, slots: Slots, name: str) -> None:
        from prefect.client.orchestration import get_client

        super().__init__(slots.cores, slots.gpus, slots.memory_gb)
        self.name = name
        self._client = get_client(sync_client=True)
        self._leases: dict[int, list[UUID]] = {}
        self._held = threading.Lock()
        self._end = threading.Event()
        self._check_limits(limits(name, slots))
        threading.Thread(target=self._renew, daemon=True).start()

    def _check_limits(self, wanted: Mapping[str, int]) -> None:
        from prefect.exceptions import ObjectNotFound

        for name in wanted:
            try:
                self._client.read_global_concurrency_limit_by_name(name)
            except ObjectNotFound:
                raise RewardsmithError(
                    f"the limit '{name}' does not exist on the Prefect server, so nothing would keep jobs apart. "
                    "Run `rewardsmith up`, which creates it"
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
                self._release(lease)
            super().give_back(grant)
            return None
        grant = self._exchanged(grant, tuple(given))
        with self._held:
            self._leases[id(grant)] = leases
        return grant

    def _exchanged(self, grant: Grant, given: tuple[str, ...]) -> Grant:
        """The grant with the GPUs that the limits gave instead of those first thought of."""
        with self._lock:
            free = [gpu for gpu in self._free_gpus if gpu not in given] + [g for g in grant.gpus if g not in given]
            self._free_gpus = sorted(free, key=self.gpus.index)
        return Grant(grant.cores, given, grant.memory_gb)

    def give_back(self, grant: Grant) -> None:
        with self._held:
            leases = self._leases.pop(id(grant), [])
        for lease in leases:
            self._release(lease)
        super().give_back(grant)

    def close(self) -> None:
        """Gives everything back."""
        self._end.set()
        with self._held:
            held, self._leases = self._leases, {}
        for leases in held.values():
            for lease in leases:
                self._release(lease)

    def _lease(self, name: str, count: int, leases: list[UUID]) -> bool:
        import httpx

        try:
            answer = self._client.increment_concurrency_slots_with_lease(
                [name], slots=count, mode="concurrency", lease_duration=LEASE_SECONDS
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.LOCKED:
                return False
            raise
        made: dict[str, Any] = answer.json()
        if not made.get("limits"):
            raise RewardsmithError(f"the limit '{name}' has gone. Run `rewardsmith up`, which creates it")
        leases.append(UUID(str(made["lease_id"])))
        return True

    def _release(self, lease: UUID) -> None:
        """Gives a lease back; one that cannot be reached ends by itself."""
        import httpx

        try:
            self._client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError:
            return

    def _renew(self) -> None:
        import httpx

        while not self._end.wait(RENEW_SECONDS):
            with self._held:
                leases = [lease for held in self._leases.values() for lease in held]
            for lease in leases:
                try:
                    self._client.renew_concurrency_lease(lease, LEASE_SECONDS)
                except httpx.HTTPError:
                    continue


def machine_slots(slots: Slots) -> Slots:
    """The slots as they are shared on a platform; as they are without one."""
    name = os.environ.get("REWARDSMITH_SLOTS")
    return SharedSlots(slots, name) if name else slots
