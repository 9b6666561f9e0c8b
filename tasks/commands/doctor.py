"""Check of this machine's tools for Rewardsmith, with advice on installing missing ones."""

from __future__ import annotations

import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rlhf_core.errors import RecipeError
from rlhf_core.evaluation.sandbox import Sandbox, SandboxError
from tasks.commands.options import print_table
from tasks.commands.project_sizes import found_device
from tasks.running import machine

#: ok: there; note: works without, with a loss that the remedy names; missing: needed.
OK, NOTE, MISSING = "ok", "note", "missing"
COLOURS = {OK: "green", NOTE: "yellow", MISSING: "red"}
DEMO_DISK_GB, DEMO_MEMORY_GB = 3.0, 4.0
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
#: Programs by name, with the state without them and where they are from.
PROGRAMS = {
    "git": (("git",), MISSING, "install git: apt install git, or xcode-select --install"),
    "Chromium": (CHROMIUM, NOTE, "install chromium: only needed to take pictures of the report page (tests, docs)"),
}  # fmt: skip
NEEDED = ("torch", "transformers", "dvc", "prefect", "mlflow", "pandera")


class Finding(NamedTuple):
    """One thing checked: its state, what was found, and what to do when it is not there."""

    name: str
    state: str
    found: str
    remedy: str = ""


def _finding(name: str, fits: bool, found: str, lacking: str, remedy: str) -> Finding:
    """Returns what was found, with the state `lacking` and the remedy where it does not fit."""
    return Finding(name, OK, found) if fits else Finding(name, lacking, found, remedy)


def examine(root: Path) -> list[Finding]:
    """Returns every check, in the order of reading."""
    system, kind = platform.system(), platform.machine()
    cores, memory, free = machine.cores(), machine.memory_gb(), machine.free_disk_gb(root)
    gpus, device = machine.gpus(), found_device()
    paths = {name: next(filter(None, map(shutil.which, programs)), None) for name, (programs, *_) in PROGRAMS.items()}
    return [
        _finding(
            "system", system == "Linux" and kind in ("x86_64", "AMD64"), f"{system} {kind}", NOTE,
            "tested on Linux x86-64; elsewhere the testbed should run, DeepSpeed and code isolation do not",
        ),
        _finding(
            "Python", (3, 11) <= sys.version_info[:2] < (3, 14), platform.python_version(), MISSING,
            "install Python 3.11, 3.12 or 3.13 (python.org, your package manager, or uv) and run `make`",
        ),
        *(_finding(name, path is not None, path or "not found", *PROGRAMS[name][1:]) for name, path in paths.items()),
        check_packages(root / "constraints.txt"),
        _finding(
            "repository", (root / "dvc.yaml").exists() and (root / ".dvc").is_dir(), str(root.resolve()), MISSING,
            "run in a clone, or in a project that `rewardsmith init` made",
        ),
        _finding("cores", cores >= 2, str(cores), NOTE, "the demo takes twice as long"),
        _finding(
            "memory", memory >= DEMO_MEMORY_GB, f"{memory:.1f} GiB", NOTE,
            f"the demo needs about {DEMO_MEMORY_GB:g} GiB; close other programs",
        ),
        _refused("disk", MISSING, problem) if (problem := machine.unusable_disk(root)) else _finding(
            "disk", free >= DEMO_DISK_GB, f"{free:.0f} GiB free", MISSING,
            f"the demo needs about {DEMO_DISK_GB:g} GiB; `make clean`, or `dvc gc -w` in .demo",
        ),
        _finding(
            "GPU", bool(gpus), f"{device} ({', '.join(gpus)})" if device.on_gpu else ", ".join(gpus) or "none", NOTE,
            "small models need none; larger ones need NVIDIA GPUs and torch for CUDA: `make install TORCH=cuda`",
        ),
        _isolation(),
    ]  # fmt: skip


def _refused(name: str, lacking: str, problem: str) -> Finding:
    """Returns a refusal, whose first sentence is what was found and whose others are the remedy."""
    found, _, remedy = problem.partition(". ")
    return Finding(name, lacking, found, remedy)


def pinned(constraints: Path) -> dict[str, str]:
    """Returns versions by name from a constraints file, of a clone; nothing in a project, which lacks it."""
    text = constraints.read_text(encoding="utf-8") if constraints.exists() else ""
    return dict(re.findall(r"^([\w.-]+)(?:\[.*?\])? *== *([^\s;#]+)", text, re.MULTILINE))


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_packages(constraints: Path) -> Finding:
    """Returns the installed versions against constraints.txt."""
    pins = pinned(constraints)
    if absent := [name for name in NEEDED if _installed(name) is None]:
        remedy = "make install" if pins else "pip install rewardsmith"
        return Finding("packages", MISSING, f"not installed: {', '.join(absent)}", remedy)
    if not pins:
        return Finding("packages", OK, "installed; the tested versions are in constraints.txt of a clone")
    found = {name: version for name in pins if (version := _installed(name))}
    wrong = [f"{name} {own} instead of {pins[name]}" for name, own in found.items() if own.split("+")[0] != pins[name]]
    shown = ", ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else "")
    return _finding(
        "packages", not wrong, shown or f"{len(pins)} pinned, all as tested", NOTE,
        "make install brings the tested versions",
    )  # fmt: skip


def _isolation() -> Finding:
    """Returns whether generated code can be isolated: the sandbox is started once."""
    try:
        with Sandbox():
            return Finding("isolation for generated code", OK, "bubblewrap")
    except SandboxError as error:
        return _refused("isolation for generated code", NOTE, str(error))


def report(root: Path) -> int:
    """Prints the findings; returns how many needed things are missing."""
    findings = examine(root)
    rows = [(each.state, each.name, each.found, each.remedy) for each in findings]
    print_table(("", "what", "found", "what to do"), rows, styles=[COLOURS[each.state] for each in findings])
    missing = sum(finding.state == MISSING for finding in findings)
    print(f"{missing} requirement(s) missing" if missing else "everything that is needed is installed")
    return missing


def report_scale(root: Path, scale: str, deepspeed: Path | None, ranks: int, gpu_gb: float) -> int:
    """Prints the memory that a scale's stages need; returns how many do not fit a GPU of `gpu_gb` GiB."""
    from rlhf_core.models.forecast import GIB, Sharding
    from tasks.graph.rows import papers
    from tasks.graph.scale_check import check_scale
    from tasks.params.stages import read_deepspeed

    sharding, rows, styles = Sharding.of(ranks, None if deepspeed is None else read_deepspeed(deepspeed)), [], []
    for paper in papers(root):
        try:
            stages = check_scale(root, scale, sharding, paper)
        except RecipeError as error:
            print(f"{paper}: not checked ({error})")
            continue
        for one in stages:
            trained = ", ".join(f"{name} {count / 1e9:.3f} B" for name, count in one.trained.items())
            memory = ", ".join(f"{name} {size / GIB:.1f}" for name, size in one.gpu.items())
            fits, hours = one.fit(gpu_gb), f"{one.gpu_hours:.0f}"
            sizes = (f"{one.total / GIB:.1f}", fits or "too much", f"{one.host / GIB:.1f}", hours)
            rows.append((paper, one.backbone, one.stage, trained, memory, *sizes))
            styles.append("" if fits else "red")
    how = "DDP, bf16" if deepspeed is None else deepspeed.name
    print(f"{scale}: {ranks} GPU(s), {how}; GiB on each")
    named = ("paper", "backbone", "stage", "trained parameters", "memory", "total", f"of {gpu_gb:g}", "host per rank")
    print_table((*named, "GPU hours"), rows, styles=styles)
    return styles.count("red")
