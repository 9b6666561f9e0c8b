"""What the machine has, by affinity, quota and declaration."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasks import machine


def test_quota_limits_the_cores(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("100000 100000\n")
    assert machine.cores(tmp_path) == 1


def test_without_quota_affinity_counts(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert machine.cores(tmp_path) == len(os.sched_getaffinity(0))


def test_quota_of_half_a_core_gives_one(tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert machine.cores(tmp_path) == 1


def test_quota_of_the_first_version_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("150000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.cgroup_cores(tmp_path) == 1.5


def test_declared_gpus_count_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert machine.gpus() == ["3"]
    monkeypatch.setenv("REWARDSMITH_GPUS", "0, 1")
    assert machine.gpus() == ["0", "1"]
    monkeypatch.setenv("REWARDSMITH_GPUS", "")
    assert machine.gpus() == []


def test_memory_limit_of_the_control_group_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    assert machine.memory_gb(tmp_path) == 1.0
