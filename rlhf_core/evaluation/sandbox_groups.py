"""Control groups that bound a whole sandbox, kernel memory included; version 2, or 1 where a machine still has it.

A group is made beside or below this process's own, where the system lets this process do so. Elsewhere the limits of
each process hold alone (docs/security.md).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_PREFIX = "rewardsmith-sandbox-"
_SECONDS_TO_EMPTY = 2.0
#: Files of a controller's limit in version 2 and in version 1.
_LIMITS = {"memory": ("memory.max", "memory.limit_in_bytes"), "pids": ("pids.max", "pids.max")}
_made = itertools.count()


@dataclass(frozen=True)
class ControlGroup:
    """Folders of a sandbox's group, one in version 2, one for each controller in version 1.

    Attributes:
        folders: controllers that a folder limits -> the folder.
    """

    folders: Mapping[tuple[str, ...], Path]

    @property
    def files(self) -> list[str]:
        """Returns the files in which a process writes 0 to join."""
        return [str(folder / "cgroup.procs") for folder in self.folders.values()]

    @property
    def holding(self) -> set[str]:
        """Returns the controllers whose folder has a process in it."""
        return {name for names, folder in self.folders.items() if _processes(folder) for name in names}

    def remove(self) -> None:
        """Removes the folders once their processes have ended."""
        end = time.monotonic() + _SECONDS_TO_EMPTY
        for folder in self.folders.values():
            while _processes(folder) and time.monotonic() < end:
                time.sleep(0.005)
            with contextlib.suppress(OSError):
                folder.rmdir()


def _processes(folder: Path) -> str:
    try:
        return (folder / "cgroup.procs").read_text()
    except OSError:
        return ""


def make_group(memory_mb: int, processes: int, proc: Path = Path("/proc/self")) -> ControlGroup:
    """Returns a new group with limits on memory and processes; without folders where none can be made.

    Args:
        memory_mb: of all its processes, MiB, with their files in memory and the kernel's own for them.
        processes: side by side, threads included.
        proc: folder of this process in procfs.
    """
    limits = {"memory": str(memory_mb << 20), "pids": str(processes)}
    folders: dict[tuple[str, ...], Path] = {}
    for parents, version, controllers in _hierarchies(proc):
        for parent in parents:
            names = tuple(
                name for name in controllers if version == 1 or name in _words(parent / "cgroup.subtree_control")
            )
            folder = _made_in(parent, {_LIMITS[name][2 - version]: limits[name] for name in names}) if names else None
            if folder is not None:
                folders[names] = folder
                break
    return ControlGroup(folders)


def _hierarchies(proc: Path) -> Iterator[tuple[list[Path], int, list[str]]]:
    """Yields for each mounted hierarchy: folders of this process's group and those above it, version, controllers."""
    try:
        own = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return
    for mount in mounts:
        kind, _, options = mount[mount.index("-") + 1 :][:3]
        if kind not in ("cgroup", "cgroup2"):
            continue
        version = 2 if kind == "cgroup2" else 1
        controllers = [name for name in _LIMITS if version == 2 or name in options.split(",")]
        for _, names, path in own:
            if (names == "") if version == 2 else bool({*names.split(",")} & {*controllers}):
                root, group = Path(mount[3]), Path(path)
                below = group.relative_to(root) if group.is_relative_to(root) else Path()
                place = Path(mount[4].replace("\\040", " "))  # as mountinfo writes a space
                yield [place / below, *(place / each for each in below.parents)], version, controllers


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _made_in(parent: Path, limits: Mapping[str, str]) -> Path | None:
    """Returns a new group below another, or None where this process may not make it."""
    for left in parent.glob(f"{_PREFIX}*"):  # of a process that was killed
        owner = left.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                left.rmdir()
    folder = parent / f"{_PREFIX}{os.getpid()}-{next(_made)}"
    try:
        folder.mkdir()
    except OSError:
        return None
    try:
        for file, value in limits.items():
            (folder / file).write_text(value)
    except OSError:
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    with contextlib.suppress(OSError):  # no swap beside the memory, where it is counted
        swap = folder / "memory.swap.max"
        if swap.exists():
            swap.write_text("0")
    return folder
