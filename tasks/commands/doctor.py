"""Check of this machine's tools for Rewardsmith, with advice on installing missing ones."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from rlhf_core.models.device_settings import StatedSettings, resolve
from tasks.commands.project_sizes import found_device
from tasks.running import machine

#: ok: there; note: works without, with a loss that the remedy names; missing: needed.
OK, NOTE, MISSING = "ok", "note", "missing"
DEMO_DISK_GB, DEMO_MEMORY_GB = 3.0, 4.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Programs by name, with the state without them and where they are from.
PROGRAMS = {
    "git": (("git",), MISSING, "install git: apt install git, or xcode-select --install"),
    "C++ compiler": (
        ("g++", "clang++", "c++"), NOTE,
        "install g++ (apt install g++): DeepSpeed compiles its operators when it is first used",
    ),
    "Chromium": (CHROMIUM, NOTE, "install chromium: only needed to take pictures of the report page (tests, docs)"),
}  # fmt: skip
NEEDED = ("torch", "transformers", "dvc", "prefect", "mlflow", "pandera")


@dataclass(frozen=True)
class Finding:
    """One thing checked: its state, what was found, and what to do when it is not there."""

    name: str
    state: str
    found: str
    remedy: str = ""

    @classmethod
    def of(cls, name: str, fits: bool, found: str, lacking: str, remedy: str) -> Finding:
        """Returns what was found, with the state `lacking` and the remedy where it does not fit."""
        return cls(name, OK, found) if fits else cls(name, lacking, found, remedy)


def examine(root: Path) -> list[Finding]:
    """Returns every check, in the order of reading."""
    system, kind = platform.system(), platform.machine()
    cores, memory = machine.cores(), machine.memory_gb()
    ready = (root / "dvc.yaml").exists() and (root / ".dvc").is_dir()
    return [
        Finding.of(
            "system", system == "Linux" and kind in ("x86_64", "AMD64"), f"{system} {kind}", NOTE,
            "tested on Linux x86-64; elsewhere the testbed should run, DeepSpeed and code isolation do not",
        ),
        Finding.of(
            "Python", (3, 11) <= sys.version_info[:2] < (3, 14), platform.python_version(), MISSING,
            "install Python 3.11, 3.12 or 3.13 (python.org, your package manager, or uv) and run `make`",
        ),
        *map(check_program, PROGRAMS),
        check_packages(root / "constraints.txt"),
        Finding.of(
            "repository", ready, str(root.resolve()), MISSING,
            "run in a clone, or in a project that `rewardsmith init` made",
        ),
        Finding.of("cores", cores >= 2, str(cores), NOTE, "the demo takes twice as long"),
        Finding.of(
            "memory", memory >= DEMO_MEMORY_GB, f"{memory:.1f} GiB", NOTE,
            f"the demo needs about {DEMO_MEMORY_GB:g} GiB; close other programs",
        ),
        check_disk(root),
        check_gpu(),
        check_isolation(),
    ]  # fmt: skip


def check_program(name: str) -> Finding:
    """Returns whether a program of `PROGRAMS` is there."""
    programs, lacking, remedy = PROGRAMS[name]
    path = next((found for program in programs if (found := shutil.which(program))), None)
    return Finding.of(name, path is not None, path or "not found", lacking, remedy)


def pinned(constraints: Path) -> dict[str, str]:
    """Returns versions by normalised name from a constraints file."""
    lines = constraints.read_text(encoding="utf-8").splitlines() if constraints.exists() else []
    pins = (line.split("#")[0].split(";")[0].strip().split("==") for line in lines if "==" in line)
    return {normalised(name): version.strip() for name, version in pins}


def normalised(name: str) -> str:
    """Returns a distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name.split("[")[0]).strip().lower()


def check_packages(constraints: Path) -> Finding:
    """Returns the installed versions against constraints.txt, which a clone has and a project lacks."""
    pins = pinned(constraints)
    installed = {normalised(d.metadata["Name"]): d.version for d in metadata.distributions() if d.metadata["Name"]}
    wrong = [
        f"{name} {installed[name]} instead of {version}"
        for name, version in sorted(pins.items())
        if name in installed and installed[name].split("+")[0] != version
    ]
    if absent := [name for name in NEEDED if name not in installed]:
        remedy = "make install" if pins else "pip install rewardsmith"
        return Finding("packages", MISSING, f"not installed: {', '.join(absent)}", remedy)
    if not pins:
        return Finding("packages", OK, "installed; the tested versions are in constraints.txt of a clone")
    if wrong:
        shown = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        return Finding("packages", NOTE, shown, "make install brings the tested versions")
    return Finding("packages", OK, f"{len(pins)} pinned, all as tested")


def check_disk(root: Path) -> Finding:
    """Returns whether the disk can be written and has room for the demo."""
    if (problem := machine.unusable_disk(root)) is not None:
        found, _, remedy = problem.partition(". ")
        return Finding("disk", MISSING, found, remedy)
    free = machine.free_disk_gb(root)
    remedy = f"the demo needs about {DEMO_DISK_GB:g} GiB; `make clean`, or `dvc gc -w` in .demo"
    return Finding.of("disk", free >= DEMO_DISK_GB, f"{free:.0f} GiB free", MISSING, remedy)


def check_gpu() -> Finding:
    """Returns the GPUs, with the settings that a stage with one of them trains in."""
    found, device = machine.gpus(), found_device()
    shown = ", ".join(found) or "none"
    if device.on_gpu:
        on_one = resolve(StatedSettings(), replace(device, count=1))
        shown = f"{device} ({shown}); a stage with one of them trains in {on_one}"
    remedy = (
        "small models need none; larger ones need NVIDIA GPUs and torch for CUDA: `make install TORCH=cuda` in a clone"
    )
    return Finding.of("GPU", bool(found), shown, NOTE, remedy)


def check_isolation() -> Finding:
    """Returns whether a separate user and network namespace, in which generated code runs, can be made."""
    program, problem = shutil.which("unshare"), "no unshare"
    if platform.system() == "Linux" and program:
        tried = subprocess.run([program, "-rn", "true"], capture_output=True, text=True)
        problem = (tried.stderr.strip() or "refused") if tried.returncode else ""
    remedy = "code benchmarks are refused here; use Linux with util-linux and user namespaces allowed"
    return Finding.of(
        "isolation for generated code", not problem, problem or "user and network namespaces", NOTE, remedy
    )


def report(root: Path) -> int:
    """Prints the findings; returns how many needed things are missing."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {OK: "green", NOTE: "yellow", MISSING: "red"}
    findings = examine(root)
    table = Table(title="rewardsmith doctor", box=None, pad_edge=False)
    for column in ("", "what", "found", "what to do"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.state, colours[finding.state]), finding.name, finding.found, finding.remedy)
    Console(markup=False, width=max(100, shutil.get_terminal_size().columns) if not os.isatty(1) else None).print(table)
    missing = sum(finding.state == MISSING for finding in findings)
    print(f"{missing} requirement(s) missing" if missing else "everything that is needed is installed")
    return missing
