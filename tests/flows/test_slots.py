"""Slots: nothing is given twice, and each stage sees only its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.slots import Slots, make_limits
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
