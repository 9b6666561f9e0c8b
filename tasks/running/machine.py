"""Resources of this machine: cores (affinity and cgroup quota), memory, disk and GPUs; and the device of a stage."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_core.errors import RewardsmithError
from rlhf_core.models.device import CPU, Device, gpu

if TYPE_CHECKING:
    import torch

#: MiB that a run needs for its temporary server, its locks and its logs.
LEAST_MB = 64
CGROUP, PROC = Path("/sys/fs/cgroup"), Path("/proc")


def granted(file: str, root: Path = CGROUP, proc: Path = PROC) -> list[list[str]]:
    """Returns the words of a file of this process's control group (version 2) and of those above it.

    In a container that sees the host's path of its group the tree begins with the group itself.
    """
    own = next((line[3:] for line in _text(proc / "self" / "cgroup").splitlines() if line.startswith("0::")), "/")
    path = Path("" if ".." in own else own.lstrip("/"))
    return [words for group in (path, *path.parents) if (words := _text(root / group / file).split())]


def _text(path: Path) -> str:
    """Returns the content of a system file; empty if the file is missing."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def cores(root: Path = CGROUP, proc: Path = PROC) -> int:
    """Returns the number of cores that this process may use, at least 1."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        count = os.cpu_count() or 1
    quotas = [int(quota) / int(period) for quota, period in granted("cpu.max", root, proc) if quota != "max"]
    return max(1, int(min([count, *quotas])))


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


def memory_gb(root: Path = CGROUP, proc: Path = PROC) -> float:
    """Returns the memory this process may use in GiB: the machine's, or what the least of its control groups grants."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *(int(limit) for (limit,) in granted("memory.max", root, proc) if limit != "max")]) / 2**30


def free_disk_gb(path: Path) -> float:
    """Returns the free disk space in GiB where the path lies."""
    return shutil.disk_usage(path).free / 2**30


def full_disk(what: str) -> str:
    """Returns a full disk in words, with what to do."""
    return f"the disk is full: {what}. Free some space and run the same command again; finished stages are kept"


def disk_problem(error: OSError, path: Path | str) -> str | None:
    """Returns a full disk or a read-only file system in words, with what to do; None for another error.

    Args:
        error: of a write.
        path: where the error names no file.
    """
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return full_disk(f"{where} cannot be written")
    if error.errno == errno.EROFS:
        return f"{where} cannot be written: its file system is read-only. Work in a folder that can be written"
    return None


def unusable_disk(root: Path, least_mb: float = 0) -> str | None:
    """Returns why a run cannot write, in words with what to do; None where it can.

    Args:
        root: the working tree; the folder of temporary files is tried, too.
        least_mb: what must be free in both.
    """
    folder = root
    try:
        for folder in (root, Path(tempfile.gettempdir())):
            with tempfile.NamedTemporaryFile(dir=folder) as probe:
                probe.write(bytes(4096))
                probe.flush()
            free = free_disk_gb(folder) * 1024
            if free < least_mb:
                return full_disk(f"{folder} has {free:.1f} MiB free, and a run needs {least_mb:g} to begin with")
    except OSError as error:  # its file name is that of the probe
        refused = f"{folder} cannot be written ({error.strerror}). Check its permissions, or set TMPDIR"
        return disk_problem(OSError(error.errno, error.strerror), folder) or refused
    return None


def refuse_unusable_disk(root: Path) -> None:
    """Refuses to start a run where nothing can be written.

    Raises:
        RewardsmithError: names the folder, and what to do.
    """
    if (problem := unusable_disk(root, LEAST_MB)) is not None:
        raise RewardsmithError(problem)


def device() -> torch.device:
    """Returns the device of models: a GPU when one was given by CUDA_VISIBLE_DEVICES, else the CPU.

    A scheduler names a stage's GPU there; a stage that declares none runs on the CPU wherever it runs.
    """
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1")
    return torch.device("cuda" if given and torch.cuda.is_available() else "cpu")


def described_device() -> Device:
    """Returns the GPUs that this stage was given, the one with the least memory for all; else the CPU."""
    import torch

    if device().type != "cuda":
        return CPU
    found = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    least = min(found, key=lambda one: one.total_memory)
    return gpu(least.name, least.total_memory / 2**30, float(f"{least.major}.{least.minor}"), len(found))
