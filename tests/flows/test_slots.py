"""Slots: nothing is given twice, and each stage sees only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import prefect.concurrency.sync
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

from flows import slots as module
from flows.slots import LEASE_SECONDS, Grant, Slots, granted, make_limits, shared
from rlhf_core.errors import RewardsmithError


def test_two_gpu_stages_see_disjoint_devices() -> None:
    slots = Slots(4, ["0", "1"], 16)
    first, second = (slots.take({"cores": 1, "gpus": 1}) for _ in range(2))
    assert first is not None
    assert second is not None
    assert {first.environment()["CUDA_VISIBLE_DEVICES"], second.environment()["CUDA_VISIBLE_DEVICES"]} == {"0", "1"}
    assert slots.take({"cores": 1, "gpus": 1}) is None
    slots.give_back(first)
    assert slots.take({"cores": 1, "gpus": 1}) == first


def test_cpu_stage_sees_no_device_and_its_threads() -> None:
    grant = Slots(2, ["0"], 16).take({"cores": 1})
    assert grant is not None
    environment = grant.environment()
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert environment["OMP_NUM_THREADS"] == environment["REWARDSMITH_THREADS"] == "1"


def test_a_stage_that_can_never_run_is_refused() -> None:
    with pytest.raises(RewardsmithError, match=r"needs 8 GPU\(s\), this machine has 1"):
        Slots(4, ["0"], 16).refuse_impossible("policy-segment-0", {"gpus": 8})


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2)), max_size=30))
def test_what_is_given_never_exceeds_what_there_is(wishes: list[tuple[int, int]]) -> None:
    slots = Slots(4, ["a", "b", "c"], 100)
    held = []
    for number, (cores, gpus) in enumerate(wishes):
        grant = slots.take({"cores": cores, "gpus": gpus})
        if grant is not None:
            held.append(grant)
        if number % 3 == 2 and held:
            slots.give_back(held.pop(0))
        devices = [gpu for one in held for gpu in one.gpus]
        assert sum(one.cores for one in held) <= 4
        assert len(devices) == len(set(devices))
    for grant in held:
        slots.give_back(grant)
    full = slots.take({"cores": 4, "gpus": 3})
    assert full is not None
    assert full.gpus == ("a", "b", "c")


def test_limits_of_a_machine_are_its_cores_memory_and_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, int] = {}
    monkeypatch.setattr("tasks.running.machine.cores", lambda: 4)
    monkeypatch.setattr("tasks.running.machine.gpus", lambda: ["0", "1"])
    monkeypatch.setattr("tasks.running.machine.memory_gb", lambda: 15.7)
    make_limits(SimpleNamespace(upsert_global_concurrency_limit_by_name=made.__setitem__), "compose")
    assert made == {"compose-cores": 4, "compose-memory-gb": 15, "compose-gpu-0": 1, "compose-gpu-1": 1}


class Server:
    """A Prefect server as the slots see it, on a clock that only waiting moves."""

    def __init__(self) -> None:
        self.now = 0.0
        self.silent_until = 0.0
        self.answers: list[Exception | None] = []
        self.release: Exception | None = None
        self.held: list[str] = []

    @contextmanager
    def stream(self, *_: Any, **__: Any) -> Iterator[None]:
        if self.now < self.silent_until:
            raise httpx.ConnectError("refused")
        yield

    @contextmanager
    def concurrency(self, limit: str, *_: Any, **__: Any) -> Iterator[None]:
        if self.answers and (cause := self.answers.pop(0)):
            raise ConcurrencySlotAcquisitionError from cause
        self.held.append(limit)
        try:
            yield
        finally:
            self.held.remove(limit)
            if self.release:
                raise self.release

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setenv("REWARDSMITH_SLOTS", "host")
    monkeypatch.setenv("PREFECT_API_URL", "http://server/api")
    monkeypatch.setattr(httpx, "stream", made.stream)
    monkeypatch.setattr(prefect.concurrency.sync, "concurrency", made.concurrency)
    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=made.sleep, monotonic=lambda: made.now))
    monkeypatch.setattr(module, "_SILENT_SINCE", {})
    monkeypatch.setattr("tasks.running.machine.gpus", lambda: ["0"])
    monkeypatch.setattr("tasks.running.machine.memory_gb", lambda: 4.0)
    return made


GRANT = Grant(1, ("0",), 1.0)
HELD = ["host-cores", "host-memory-gb", "host-gpu-0"]
LOCKED = httpx.HTTPStatusError("", request=httpx.Request("POST", "http://server"), response=httpx.Response(423))


@pytest.mark.parametrize("cause", [LOCKED, httpx.ConnectError("refused"), httpx.ReadTimeout("")])
def test_slots_that_are_not_given_are_asked_for_again(server: Server, cause: Exception) -> None:
    server.answers = [None, None, cause]
    with shared(GRANT) as own:
        assert (own, server.held, server.now) == (GRANT, HELD, module.POLL_SECONDS)
    assert not server.held


@pytest.mark.parametrize(("cause", "said"), [(ValueError("500"), "no slots"), (None, "does not exist")])
def test_a_limit_that_is_missing_or_broken_stops_the_stage(
    server: Server, monkeypatch: pytest.MonkeyPatch, cause: Exception | None, said: str
) -> None:
    @contextmanager
    def refuse(*_: Any, **__: Any) -> Iterator[None]:
        raise ConcurrencySlotAcquisitionError(said) from cause
        yield

    monkeypatch.setattr(prefect.concurrency.sync, "concurrency", refuse)
    wanted = RewardsmithError if cause is None else ConcurrencySlotAcquisitionError
    with pytest.raises(wanted, match=said), shared(GRANT):
        pass


@pytest.mark.parametrize("release", [None, httpx.ConnectError("refused")])
def test_a_stage_ends_in_its_own_error_whether_or_not_the_server_hears_the_release(
    server: Server, release: Exception | None
) -> None:
    server.release = release
    with pytest.raises(KeyError, match="of the stage"), shared(GRANT):
        raise KeyError("of the stage")
    with shared(GRANT):
        pass
    assert not server.held


def test_a_server_that_starts_again_keeps_stages_apart(server: Server) -> None:
    server.silent_until = LEASE_SECONDS - 5
    with shared(GRANT):
        assert server.held == HELD


def test_a_run_goes_on_without_a_server_that_stays_away_and_waits_for_it_once(server: Server) -> None:
    server.silent_until = 1e6
    for _ in range(2):
        with shared(GRANT) as own:
            assert (own, server.held) == (GRANT, [])
            assert server.now == pytest.approx(LEASE_SECONDS, abs=2 * module.POLL_SECONDS)


def test_a_worker_never_runs_without_its_server(server: Server) -> None:
    server.silent_until = 3 * LEASE_SECONDS
    with granted("policy", {"gpus": 1}):
        assert server.held[-1] == "host-gpu-0"
        assert server.now >= server.silent_until


def test_a_cancelled_run_waits_no_longer(server: Server) -> None:
    server.silent_until = 1e6
    with pytest.raises(RewardsmithError, match="was ended with its run"), shared(GRANT, lambda: server.now > 3):
        pass
