"""Settings that pages leave to the device, on described devices; every case is computed, no GPU is needed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_core.models.architecture import known_configuration
from rlhf_core.models.device import CPU, FLASH, Device, DeviceSettings, Load, StatedSettings, device_of, resolve
from rlhf_core.models.forecast import GIB, Sharding

SMALL = Device("RTX 4090", 24.0, bf16=True, count=1, tf32=True)
LARGE = Device("H100", 80.0, bf16=True, count=8, tf32=True, flash_attention=True)
OLD = Device("T4", 15.0, count=1)
QWEN = known_configuration("Qwen/Qwen2.5-0.5B")


def sft_of_qwen(rows: int) -> Load:
    """Half a billion parameters, trained on rows of 1,024 tokens."""
    return Load((494_032_768,), 0, QWEN.hidden_size, QWEN.num_hidden_layers, rows * 1024)


def test_eight_cards_of_80_gb_run_eight_processes_with_flash_attention() -> None:
    expected = DeviceSettings("bf16", FLASH, tf32=False, gradient_checkpointing=False, processes=8)
    assert resolve(StatedSettings(), LARGE, sft_of_qwen(32)) == expected
    assert str(expected) == "bf16, flash_attention_2 attention, 8 process(es)"
    llama = known_configuration("meta-llama/Llama-3.2-3B")
    load = Load((3_212_749_824,), 0, llama.hidden_size, llama.num_hidden_layers, 8 * 1024)
    assert resolve(StatedSettings(), LARGE, load).gradient_checkpointing
    zero: dict[str, Any] = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    assert not resolve(StatedSettings(), LARGE, load, zero).gradient_checkpointing, "an eighth of the optimiser on each"


@pytest.mark.parametrize("load", [None, sft_of_qwen(32), sft_of_qwen(10**6)])
def test_without_a_gpu_nothing_changes(load: Load | None) -> None:
    expected = DeviceSettings("float32", None, tf32=False, gradient_checkpointing=False, processes=1)
    assert resolve(StatedSettings(), CPU, load) == expected
    assert resolve(StatedSettings(), CPU, load, {"zero_optimization": {}, "bf16": {"enabled": True}}) == expected


def test_what_is_stated_wins_on_every_device() -> None:
    stated = StatedSettings("float32", "eager", gradient_checkpointing=True, processes=3)
    for device in (SMALL, LARGE, OLD, CPU):
        found = resolve(stated, device, sft_of_qwen(1))
        assert replace(found, tf32=False) == DeviceSettings("float32", "eager", False, True, 3)
        assert found.tf32 == device.tf32, "float32 on a GPU that has TF32"
    off = StatedSettings(gradient_checkpointing=False)
    assert not resolve(off, LARGE, sft_of_qwen(10**6)).gradient_checkpointing
    assert resolve(StatedSettings("bf16"), CPU).precision == "bf16"


def test_the_forecast_of_activations_by_hand() -> None:
    load = Load((100,), 50, hidden=8, layers=4, tokens=10)
    for bf16, each in ((False, 4), (True, 2)):
        models = 100 * (18 if bf16 else 16) + 50 * each
        kept, recomputed = 17 * 4 * each * 10 * 8, (4 + 17) * each * 10 * 8
        sharding = Sharding(1, bf16=bf16)
        assert load.bytes(sharding, recomputed=False) == pytest.approx(1.1 * (models + kept))
        assert load.bytes(sharding, recomputed=True) == pytest.approx(1.1 * (models + recomputed))
    assert sft_of_qwen(16).bytes(Sharding(1, bf16=True), recomputed=False) < 24 * GIB


def test_the_gpu_with_the_least_memory_counts() -> None:
    found = device_of(["H100, 81559, 9.0", "T4, 15360, 7.5"])
    assert (found.name, found.memory_gb, found.bf16, found.tf32, found.count) == ("T4", 15.0, False, False, 2)
    assert not found.flash_attention
