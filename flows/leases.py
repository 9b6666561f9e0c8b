"""Leases: slots of Prefect limits that a process holds while it lives, and that come free when it dies."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from tasks.running.platform_state import alive, note_of, read_private, write_private

#: Seconds for which a killed process still holds its slots; Prefect accepts no less.
LEASE_SECONDS = 60.0
RENEW_SECONDS = 15.0
#: Subfolder of the platform's folder with the notes of which process holds which lease.
FOLDER = "leases"


@dataclass
class _Held:
    """Slots of a limit and the lease that holds them; None while it is lost and others have the slots."""

    limit: str
    count: int
    lease: UUID | None


class Leases:
    """This process's leases, renewed until they are given back or the process ends.

    One that ended all the same (the server was away for longer than it lasts) is taken again, under the same handle.
    """

    def __init__(self) -> None:
        from prefect.client.orchestration import get_client
        from prefect.logging import get_logger

        self.client = get_client(sync_client=True)
        self._log = get_logger("leases")
        self._held: dict[UUID, _Held] = {}
        self._silent = False
        self._lock = threading.Lock()
        self._end = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def take(self, name: str, count: int = 1) -> UUID | None:
        """Takes slots of a limit; returns a handle for `give_back`, None while others hold them.

        Raises:
            LookupError: there is no such limit.
        """
        lease = self._take(name, count)
        if lease is not None:
            with self._lock:
                self._held[lease] = _Held(name, count, lease)
        return lease

    def _take(self, name: str, count: int) -> UUID | None:
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
        if (folder := _notes()) is not None:
            try:
                write_private(folder / f"{lease}.json", note_of(os.getpid()) | {"limit": name})
            except OSError as error:  # a full disk; the server ends the lease of a process that dies
                self._log.warning("the lease on %s cannot be noted: %s", name, error)
        return lease

    def give_back(self, handle: UUID) -> None:
        """Gives slots back. Slots of a server that cannot be reached become free by themselves."""
        import httpx

        with self._lock:
            held = self._held.pop(handle, None)
        if held is None or held.lease is None:
            return
        try:
            self.client.release_concurrency_slots_with_lease(held.lease)
        except httpx.HTTPError as error:
            self._log.warning("slots of %s become free only in %.0f s: %s", held.limit, LEASE_SECONDS, error)
        _forget(held.lease)

    def close(self) -> None:
        """Gives everything back."""
        self._end.set()
        with self._lock:
            handles = list(self._held)
        for handle in handles:
            self.give_back(handle)

    def _keep(self) -> None:
        while not self._end.wait(RENEW_SECONDS):
            self.renew()

    def renew(self) -> None:
        """Renews every lease; says when the server does not answer, and takes again what ended meanwhile."""
        import httpx

        with self._lock:
            held = dict(self._held)
        for handle, one in held.items():
            try:
                if one.lease is not None:
                    self.client.renew_concurrency_lease(one.lease, LEASE_SECONDS)
                else:
                    self._take_again(handle)
                self._silent = False
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (httpx.codes.GONE, httpx.codes.NOT_FOUND):
                    self._log.warning("the lease on %s cannot be renewed: %s", one.limit, error)
                    continue
                self._take_again(handle)
            except httpx.HTTPError as error:
                if not self._silent:
                    self._log.warning("the server does not renew leases (%s): slots may go to other runs", error)
                self._silent = True

    def _take_again(self, handle: UUID) -> None:
        """Takes a new lease in place of one that ended, unless it has been given back or others hold its slots."""
        import httpx

        with self._lock:
            one = self._held.get(handle)
            if one is None:
                return
            was, one.lease = one.lease, None
            if was is not None:
                _forget(was)
            try:
                one.lease = self._take(one.limit, one.count)
                problem = "other runs hold them now; more runs are active than there are slots"
            except (LookupError, httpx.HTTPError) as error:
                problem = f"they cannot be taken again yet: {error!r}"
            if one.lease is not None:
                self._log.warning("the lease on %s had ended; its slots were taken again", one.limit)
            elif was is not None:
                self._log.warning("the lease on %s had ended: %s", one.limit, problem)


def _notes() -> Path | None:
    platform = os.environ.get("REWARDSMITH_PLATFORM")
    return Path(platform) / FOLDER if platform else None


def _forget(lease: UUID) -> None:
    if (folder := _notes()) is not None:
        (folder / f"{lease}.json").unlink(missing_ok=True)


def release_dead(client: Any, platform: Path) -> list[str]:
    """Gives the leases of dead processes back, so that they do not end later at the cost of a run that lives.

    Returns:
        the limits whose slots they held.
    """
    freed = []
    for path in sorted((platform / FOLDER).glob("*.json")):
        note = read_private(path)
        if alive(note):
            continue
        client.release_concurrency_slots_with_lease(UUID(path.stem))
        path.unlink(missing_ok=True)
        freed.append(str(note.get("limit", "a limit")))
    return freed
