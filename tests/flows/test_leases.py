"""Leases against a server that counts slots as Prefect does: what ends, and what the dead leave behind."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from flows.leases import FOLDER, Leases, release_dead
from flows.servers.recovery import _free_slots
from flows.servers.settings import slots_name

CORES = f"{slots_name()}-cores"


class Server:
    """One limit of two slots with leases, and Prefect's service that ends leases that nobody renews."""

    def __init__(self) -> None:
        self.id, self.active, self.away = uuid4(), 0, False
        self.leases: dict[UUID, int] = {}

    def answer(self, status: int, **content: Any) -> httpx.Response:
        request = httpx.Request("POST", "http://server")
        if self.away:
            raise httpx.ConnectError("refused", request=request)
        response = httpx.Response(status, json=content, request=request)
        response.raise_for_status()
        return response

    def increment_concurrency_slots_with_lease(self, names: list[str], slots: int, **_: Any) -> httpx.Response:
        if self.active + slots > 2:
            return self.answer(423)
        lease = uuid4()
        answer = self.answer(200, limits=names, lease_id=str(lease))
        self.active, self.leases[lease] = self.active + slots, slots
        return answer

    def renew_concurrency_lease(self, lease: UUID, _seconds: float) -> None:
        self.answer(204 if lease in self.leases else 410)

    def release_concurrency_slots_with_lease(self, lease: UUID) -> None:
        self.answer(204)
        self.end(lease)

    def end(self, lease: UUID) -> None:
        self.active = max(0, self.active - self.leases.pop(lease, 0))

    def read_global_concurrency_limits(self, limit: int) -> list[Any]:
        return [SimpleNamespace(name=CORES, id=self.id, active_slots=self.active)]

    def update_global_concurrency_limit(self, _name: str, update: Any) -> None:
        self.active = update.active_slots

    def store(self, home: Path) -> list[Path]:
        folder = home / "concurrency_leases"
        folder.mkdir(parents=True)
        for lease in self.leases:
            (folder / f"{lease}.json").write_text(json.dumps({"id": str(lease), "resource_ids": [str(self.id)]}))
        return list(folder.iterdir())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Server:
    made = Server()
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(tmp_path))
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: made)
    return made


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    log = SimpleNamespace(warning=lambda text, *parts: lines.append(text % parts))
    monkeypatch.setattr("prefect.logging.get_logger", lambda _name: log)
    return lines


def of_a_dead_process(folder: Path) -> None:
    """Makes the notes of this process's leases those of one that was killed."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for path in (folder / FOLDER).glob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"pid": process.pid}))


def test_slots_of_a_killed_process_come_free_and_cost_the_next_run_nothing(server: Server, tmp_path: Path) -> None:
    Leases().take(CORES, 2)
    old = next(iter(server.leases))
    of_a_dead_process(tmp_path)
    assert release_dead(server, tmp_path) == [CORES]
    assert Leases().take(CORES, 2) is not None
    server.end(old)  # the moment at which the dead run's lease would have ended
    assert server.active == 2
    assert release_dead(server, tmp_path) == [], "the next run lives"


def test_slots_that_a_lease_explains_are_left_to_it(server: Server, tmp_path: Path) -> None:
    Leases().take(CORES)
    for path in server.store(tmp_path / "prefect-home"):
        os.utime(path, (0, 0))
    assert _free_slots(server, tmp_path) == []
    assert server.active == 1


@pytest.mark.parametrize(("age", "freed"), [(0, False), (60, True)])
def test_a_lease_whose_process_was_killed_before_it_noted_it_is_given_back(
    server: Server, tmp_path: Path, age: int, freed: bool
) -> None:
    """One that is a moment old may be noted in the next."""
    Leases().take(CORES)
    shutil.rmtree(tmp_path / FOLDER)
    for path in server.store(tmp_path / "prefect-home"):
        os.utime(path, (time.time() - age,) * 2)
    assert _free_slots(server, tmp_path) == ([f"slot(s) of {CORES} are free again"] if freed else [])
    assert server.active == (0 if freed else 1)


def test_slots_that_no_lease_explains_are_freed(server: Server, tmp_path: Path) -> None:
    server.active = 1
    assert _free_slots(server, tmp_path) == [f"1 slot(s) of {CORES} are free again"]
    assert server.active == 0


def test_a_lease_that_ended_is_taken_again_under_its_handle(server: Server, said: list[str]) -> None:
    leases = Leases()
    handle = leases.take(CORES)
    assert handle is not None
    server.end(handle)
    leases.renew()
    assert server.active == 1
    assert said == [f"the lease on {CORES} had ended; its slots were taken again"]
    leases.give_back(handle)
    assert server.active == 0


def test_slots_that_others_have_meanwhile_are_taken_when_they_are_free(server: Server, said: list[str]) -> None:
    leases, others = Leases(), Leases()
    handle = leases.take(CORES, 2)
    assert handle is not None
    server.end(handle)
    theirs = others.take(CORES, 2)
    assert theirs is not None
    leases.renew()
    leases.renew()
    assert [line.partition(":")[0] for line in said] == [f"the lease on {CORES} had ended"]
    others.give_back(theirs)
    leases.renew()
    assert server.active == 2
    leases.close()
    assert server.active == 0


@pytest.mark.parametrize("end", [Leases.close, lambda leases: leases.give_back(next(iter(leases._held)))])
def test_what_is_given_back_is_not_taken_again(server: Server, tmp_path: Path, end: Callable[[Leases], None]) -> None:
    leases = Leases()
    leases.take(CORES)
    end(leases)
    leases.renew()
    assert (server.active, list((tmp_path / FOLDER).iterdir())) == (0, [])


def test_a_server_that_is_away_is_said_once(server: Server, said: list[str]) -> None:
    leases = Leases()
    leases.take(CORES)
    server.away = True
    leases.renew()
    leases.renew()
    assert len(said) == 1
    assert "does not renew leases" in said[0]
