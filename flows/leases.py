"""Leases: slots of Prefect limits that a process holds while it lives, and that come free when it dies."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

#: How long a killed process holds its slots; Prefect takes no less.
LEASE_SECONDS = 60.0
RENEW_SECONDS = 15.0


class Leases:
    """This process's leases, renewed until they are given back or the process ends."""

    def __init__(self) -> None:
        from prefect.client.orchestration import get_client

        self.client = get_client(sync_client=True)
        self._held: set[UUID] = set()
        self._lock = threading.Lock()
        self._end = threading.Event()
        threading.Thread(target=self._renew, daemon=True).start()

    def take(self, name: str, count: int = 1) -> UUID | None:
        """Slots of a limit; None while others hold them.

        Raises:
            LookupError: there is no such limit.
        """
        import httpx

        try:
            answer = self.client.increment_concurrency_slots_with_lease(
                [name], slots=count, mode="concurrency", lease_duration=LEASE_SECONDS
            )
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.LOCKED:
                return None
            raise
        made: dict[str, Any] = answer.json()
        if not made.get("limits"):
            raise LookupError(name)
        lease = UUID(str(made["lease_id"]))
        with self._lock:
            self._held.add(lease)
        return lease

    def give_back(self, lease: UUID) -> None:
        """Gives a lease back; one that cannot be reached ends by itself."""
        import httpx

        with self._lock:
            self._held.discard(lease)
        try:
            self.client.release_concurrency_slots_with_lease(lease)
        except httpx.HTTPError:
            return

    def close(self) -> None:
        """Gives everything back."""
        self._end.set()
        with self._lock:
            held = list(self._held)
        for lease in held:
            self.give_back(lease)

    def _renew(self) -> None:
        import httpx

        while not self._end.wait(RENEW_SECONDS):
            with self._lock:
                held = list(self._held)
            for lease in held:
                try:
                    self.client.renew_concurrency_lease(lease, LEASE_SECONDS)
                except httpx.HTTPError:
                    continue
