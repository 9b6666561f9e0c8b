"""Check of this machine's tools for Rewardsmith, with advice on installing missing ones."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from rlhf_core.models.device_settings import StatedSettings, resolve
from tasks.commands.project_sizes import found_device
from tasks.running import machine

#: ok: there; note: works without, with a loss that the text names; missing: needed.
OK, NOTE, MISSING = "ok", "note", "missing"
DEMO_DISK_GB, DEMO_MEMORY_GB = 3.0, 4.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@dataclass(frozen=True)
class Finding:
    """One thing checked: its state, what was found, and what to do when it is not there."""

    name: str
    state: str
    found: str
    remedy: str = ""


def check_python() -> Finding:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] < (3, 14)
    remedy = (
        "" if fits else "install Python 3.11, 3.12 or 3.13 (python.org, your package manager, or uv) and run `make`"
    )
    return Finding("Python", OK if fits else MISSING, version, remedy)


def _program(name: str, programs: tuple[str, ...], state: str, remedy: str) -> Finding:
    path = next((found for program in programs if (found := shutil.which(program))), None)
    return Finding(name, OK if path else state, path or "not found", "" if path else remedy)


def check_git() -> Finding:
    return _program("git", ("git",), MISSING, "install git: apt install git, or xcode-select --install")


def check_compiler() -> Finding:
    remedy = "install g++ (apt install g++): DeepSpeed compiles its operators when it is first used"
    return _program("C++ compiler", ("g++", "clang++", "c++"), NOTE, remedy)


def check_chromium() -> Finding:
    remedy = "install chromium: only needed to take pictures of the report page (tests, docs)"
    return _program("Chromium", CHROMIUM, NOTE, remedy)


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
    absent = [
        name for name in ("torch", "transformers", "dvc", "prefect", "mlflow", "pandera") if name not in installed
    ]
    if absent:
        remedy = "make install" if pins else "pip install rewardsmith"
        return Finding("packages", MISSING, f"not installed: {', '.join(absent)}", remedy)
    if not pins:
        return Finding("packages", OK, "installed; the tested versions are in constraints.txt of a clone")
    if wrong:
        shown = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
        return Finding("packages", NOTE, shown, "make install brings the tested versions")
    return Finding("packages", OK, f"{len(pins)} pinned, all as tested")


def check_cores() -> Finding:
    count = machine.cores()
    return Finding(
        "cores", OK if count >= 2 else NOTE, str(count), "" if count >= 2 else "the demo takes twice as long"
    )


def check_memory() -> Finding:
    size = machine.memory_gb()
    remedy = f"the demo needs about {DEMO_MEMORY_GB:g} GiB; close other programs"
    return Finding("memory", OK if size >= DEMO_MEMORY_GB else NOTE, f"{size:.1f} GiB", "" if size >= 4 else remedy)


def check_disk(root: Path) -> Finding:
    if (problem := machine.unusable_disk(root)) is not None:
        found, _, remedy = problem.partition(". ")
        return Finding("disk", MISSING, found, remedy)
    free = machine.free_disk_gb(root)
    remedy = f"the demo needs about {DEMO_DISK_GB:g} GiB; `make clean`, or `dvc gc -w` in .demo"
    enough = free >= DEMO_DISK_GB
    return Finding("disk", OK if enough else MISSING, f"{free:.0f} GiB free", "" if enough else remedy)


def check_gpu() -> Finding:
    found, device = machine.gpus(), found_device()
    shown = ", ".join(found) or "none"
    if device.on_gpu:
        on_one = resolve(StatedSettings(), replace(device, count=1))
        shown = f"{device} ({shown}); a stage with one of them trains in {on_one}"
    remedy = (
        "small models need none; larger ones need NVIDIA GPUs and torch for CUDA: `make install TORCH=cuda` in a clone"
    )
    return Finding("GPU", OK if found else NOTE, shown, "" if found else remedy)


def check_isolation() -> Finding:
    """Returns whether a separate user and network namespace, in which generated code runs, can be made."""
    program = shutil.which("unshare")
    remedy = "code benchmarks are refused here; use Linux with util-linux and user namespaces allowed"
    if platform.system() != "Linux" or not program:
        return Finding("isolation for generated code", NOTE, "no unshare", remedy)
    try:
        tried = subprocess.run([program, "-rn", "true"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Finding("isolation for generated code", NOTE, str(error), remedy)
    if tried.returncode:
        return Finding("isolation for generated code", NOTE, tried.stderr.strip() or "refused", remedy)
    return Finding("isolation for generated code", OK, "user and network namespaces")


def check_platform() -> Finding:
    system = f"{platform.system()} {platform.machine()}"
    supported = platform.system() == "Linux" and platform.machine() in ("x86_64", "AMD64")
    remedy = "tested on Linux x86-64; elsewhere the testbed should run, DeepSpeed and code isolation do not"
    return Finding("system", OK if supported else NOTE, system, "" if supported else remedy)


def check_repository(root: Path) -> Finding:
    ready = (root / "dvc.yaml").exists() and (root / ".dvc").is_dir()
    remedy = "run in a clone, or in a project that `rewardsmith init` made"
    return Finding("repository", OK if ready else MISSING, str(root.resolve()), "" if ready else remedy)


def examine(root: Path) -> list[Finding]:
    """Returns every check, in the order of reading."""
    checks: list[Callable[[], Finding]] = [
        check_platform,
        check_python,
        check_git,
        check_compiler,
        lambda: check_packages(root / "constraints.txt"),
        lambda: check_repository(root),
        check_cores,
        check_memory,
        lambda: check_disk(root),
        check_gpu,
        check_isolation,
        check_chromium,
    ]
    return [check() for check in checks]


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
