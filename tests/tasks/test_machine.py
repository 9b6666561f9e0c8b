"""Resources of the machine, by affinity, quota and declaration."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.running import machine

#: /proc/self/cgroup.
GROUP = "0::/user.slice/job\n"


def group(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


@pytest.fixture
def system(tmp_path: Path) -> Callable[[str], tuple[Path, Path]]:
    """Makes /sys/fs/cgroup and /proc of a process in given groups."""

    def made(groups: str) -> tuple[Path, Path]:
        group(tmp_path / "proc" / "self", cgroup=groups.strip())
        group(tmp_path / "sys")
        return tmp_path / "sys", tmp_path / "proc"

    return made


System = Callable[[str], tuple[Path, Path]]


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/", {"": {"cpu__max": "100000 100000"}}, 1.0),
        ("0::/", {"": {"cpu__max": "max 100000"}}, None),
        ("0::/", {"": {"cpu__max": "50000 100000"}}, 0.5),
        (GROUP, {"user.slice": {"cpu__max": "200000 100000"}, "user.slice/job": {"cpu__max": "max 100000"}}, 2.0),
    ],
)
def test_the_least_quota_of_a_process_and_above_it_limits_the_cores(
    system: System, groups: str, files: dict[str, dict[str, object]], found: float | None
) -> None:
    root, proc = system(groups)
    for folder, content in files.items():
        group(root / folder, **content)
    assert machine.cores(root, proc) == min(len(os.sched_getaffinity(0)), max(1, int(found or 1000)))


def test_declared_gpus_count_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert machine.gpus() == ["3"]
    monkeypatch.setenv("REWARDSMITH_GPUS", "0, 1")
    assert machine.gpus() == ["0", "1"]
    monkeypatch.setenv("REWARDSMITH_GPUS", "")
    assert machine.gpus() == []


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/", {"": {"memory__max": 2**30}}, 1.0),
        (GROUP, {"user.slice": {"memory__max": 2**29}, "user.slice/job": {"memory__max": "max"}}, 0.5),
        ("0::/../../other", {"": {"memory__max": 2**28}, "../../other": {"memory__max": 1}}, 0.25),
    ],
)
def test_the_least_memory_limit_of_a_process_and_above_it_counts(
    system: System, groups: str, files: dict[str, dict[str, object]], found: float
) -> None:
    root, proc = system(groups)
    for folder, content in files.items():
        group(root / folder, **content)
    assert machine.memory_gb(root, proc) == found


def test_a_system_without_control_groups_has_all_its_memory(tmp_path: Path) -> None:
    assert machine.memory_gb(tmp_path, tmp_path) == machine.memory_gb(tmp_path / "none", tmp_path / "none")
    assert machine.cores(tmp_path, tmp_path) == len(os.sched_getaffinity(0))


def test_a_disk_is_tried_before_a_run_starts(tmp_path: Path) -> None:
    assert machine.unusable_disk(tmp_path) is None
    assert list(tmp_path.iterdir()) == []
    full = machine.unusable_disk(tmp_path, 1e12)
    assert full is not None
    assert re.fullmatch(r"the disk is full: .* has [\d.]+ MiB free, and a run needs 1e\+12 .*Free some space.*", full)
    assert "cannot be written" in str(machine.unusable_disk(Path("/proc")))


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full: results cannot be written. Free some space"),
        (errno.EDQUOT, "the disk is full: results cannot be written. Free some space"),
        (errno.EROFS, "results cannot be written: its file system is read-only. Work in a folder that can be written"),
        (errno.EIO, "None"),
    ],
)
def test_an_error_of_a_disk_is_said_in_words(number: int, words: str) -> None:
    assert str(machine.disk_problem(OSError(number, os.strerror(number)), "results")).startswith(words)
