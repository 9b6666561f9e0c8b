"""Digests of every file that every stage writes into its `result/`, from the golden runs.

    python -m tests.tasks.result_digests             runs them and writes reference/result_digests.json
    python -m tests.tasks.result_digests --check     runs them and exits with 1 where a digest differs

A restructuring must leave them as they are. They hold on one kind of machine: another processor, thread count or
library rounds differently, so compare by hand where they were made; `tests/tasks/test_versions.py` has tolerances.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.tasks.golden_runs import RUNS, GoldenRuns, with_upstream

REFERENCE = Path(__file__).resolve().parents[2] / "reference" / "result_digests.json"
PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "scikit-learn", "wtpsplit", "peft")

Digests = dict[str, dict[str, str]]


def machine() -> dict[str, Any]:
    """Returns what the digests depend on beside the code."""
    import torch

    return {
        "processor": _processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": int(os.environ.get("REWARDSMITH_THREADS", "1")),
        "system": platform.system(),
        "python": platform.python_version(),
        "packages": {name: metadata.version(name) for name in PACKAGES},
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def file_digests(result: Path) -> dict[str, str]:
    """Returns the SHA-256 of every file of a result, by its path in there.

    Of a stage that stopped, of what it measured: the reason names a settings file, whose form may change.
    """
    files = sorted(path for path in result.rglob("*") if path.is_file())
    return {path.relative_to(result).as_posix(): hashlib.sha256(_content(path)).hexdigest() for path in files}


def _content(path: Path) -> bytes:
    if path.name == "stopped.json":
        return json.dumps(json.loads(path.read_text(encoding="utf-8"))["metrics"], sort_keys=True).encode()
    return path.read_bytes()


def measured(names: list[str], root: Path) -> Digests:
    """Runs the named golden runs, and what they read, in a folder; returns the digests of the named ones."""
    runs = GoldenRuns(root).write()
    found = {}
    for name in with_upstream(names):
        started = time.monotonic()
        runs.run(name)
        print(f"{name}: {time.monotonic() - started:.1f} s", flush=True)
        found[name] = file_digests(runs.result(name))
    return {name: found[name] for name in names}


def differences(before: Digests, after: Digests) -> list[str]:
    """Returns 'run file: problem' for everything in which two sets of digests differ."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append(f"{name}: {'new run' if old is None else 'not run'}")
            continue
        for file in sorted(old.keys() | new.keys()):
            if file not in new or file not in old:
                found.append(f"{name} {file}: {'missing' if file not in new else 'new file'}")
            elif old[file] != new[file]:
                found.append(f"{name} {file}: differs")
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.tasks.result_digests", description="Digests of all results.")
    parser.add_argument("runs", nargs="*", metavar="RUN", help="these runs alone, with --check (default: all)")
    parser.add_argument("--check", action="store_true", help="compare with the committed digests; write nothing")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="run in this folder and leave it there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.runs if name not in RUNS]
    if unknown or (options.runs and not options.check):
        parser.error(f"unknown runs {unknown}; known: {', '.join(RUNS)}" if unknown else "RUN needs --check")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    names = options.runs or list(RUNS)
    if options.keep:
        found = measured(names, options.keep)
    else:
        with tempfile.TemporaryDirectory() as folder:
            found = measured(names, Path(folder))
    if not options.check:
        text = json.dumps({"machine": machine(), "digests": found}, indent=1)
        REFERENCE.write_text(text + "\n", encoding="utf-8")
        return 0
    reference = json.loads(REFERENCE.read_text(encoding="utf-8"))
    if reference["machine"] != machine():
        print(f"made on {reference['machine']}, compared on {machine()}", file=sys.stderr)
    changes = differences({name: reference["digests"].get(name, {}) for name in names}, found)
    print("\n".join(changes) or f"{len(names)} runs: every file as in {REFERENCE.name}")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
