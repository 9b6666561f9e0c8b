"""What this machine has: cores (affinity and cgroup quota), memory, disk and GPUs, without importing torch."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def cgroup_cores(root: Path = CGROUP) -> float | None:
    """Cores that the control group grants (version 2, then 1), or None where there is no quota."""
    try:
        quota, period = (root / "cpu.max").read_text(encoding="ascii").split()[:2]
    except (OSError, ValueError):
        try:
            quota = (root / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    if quota in ("max", "-1"):
        return None
    return int(quota) / int(period)


def cores(cgroup: Path = CGROUP) -> int:
    """Cores this process may use, at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = os.cpu_count() or 1
    quota = cgroup_cores(cgroup)
    return max(1, min(count, int(quota) if quota is not None else count))


def gpus() -> list[str]:
    """Identifiers of the GPUs that may be used.

    REWARDSMITH_GPUS (comma-separated, may be empty) declares them; else CUDA_VISIBLE_DEVICES limits what
    `nvidia-smi` finds.
    """
    for variable in ("REWARDSMITH_GPUS", "CUDA_VISIBLE_DEVICES"):
        if variable in os.environ:
            return [name.strip() for name in os.environ[variable].split(",") if name.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if not program:
        return []
    try:
        query = [program, "--query-gpu=index", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.split() if answer.returncode == 0 else []


def memory_gb(cgroup: Path = CGROUP) -> float:
    """Memory this process may use in GiB: the machine's, or the control group's where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = (cgroup / "memory.max").read_text(encoding="ascii").strip()
    except OSError:
        limit = "max"
    return (total if limit == "max" else min(total, int(limit))) / 2**30


def free_disk_gb(path: Path) -> float:
    """Free disk space in GiB where the path lies."""
    return shutil.disk_usage(path).free / 2**30


def full_disk(what: str) -> str:
    """A full disk in words, with what to do."""
    return f"the disk is full: {what}. Free some space and run the same command again; what is finished is kept"


def out_of_memory_kills(cgroup: Path = CGROUP) -> int:
    """Processes of this control group that the system ended for want of memory so far; 0 where it does not say."""
    try:
        lines = (cgroup / "memory.events").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
