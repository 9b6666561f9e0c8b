"""Writes golden values anew: python -m tests.tasks.refresh_golden [RUN ...].

Runs them with several instruction sets and thread counts, one after the other (1 minute each for all runs), and keeps
what is stored of those that have not changed. Tolerances are FACTOR times the largest deviation.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.tasks.golden_metrics import Measured, differences, floor, measured, runs_of, store, stored, version
from tests.tasks.golden_runs import RUNS, GoldenRuns, with_upstream

FACTOR = 5.0
#: Measures golden runs of a tree in an environment, see `measure_in`.
Measure = Callable[[Path, list[str], Mapping[str, str] | None], dict[str, Measured] | str]
#: Environment of each way to round; the first gives the values.
ROUNDINGS: tuple[Mapping[str, str], ...] = (
    {},
    {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41"},
    {"ATEN_CPU_CAPABILITY": "avx2", "MKL_CBWR": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    {"REWARDSMITH_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "MKL_CBWR": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "AVX"},
)
ROOT = Path(__file__).resolve().parents[2]


def run_and_measure(names: list[str], folder: Path) -> dict[str, Measured]:
    """Runs golden runs and what they read in a folder; returns what the named ones gave."""
    runs = GoldenRuns(folder).write()
    for name in with_upstream(names):
        runs.run(name)
    return {name: measured(runs.result(name)) for name in names}


def measure_in(tree: Path, names: list[str], environment: Mapping[str, str] | None = None) -> dict[str, Measured] | str:
    """Measures golden runs of a tree in a fresh process; the last line of its error where it failed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [sys.executable, "-m", "tests.tasks.refresh_golden", "--measure", folder, str(out), *names]
        done = subprocess.run(
            command, cwd=tree, env={**os.environ, **(environment or {})}, capture_output=True, text=True
        )
        if done.returncode:
            return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        return {name: Measured(**values) for name, values in json.loads(out.read_text(encoding="utf-8")).items()}


def in_every_rounding(names: list[str]) -> list[dict[str, Measured]]:
    """Measures golden runs of this tree in every rounding."""
    measurements = []
    for environment in ROUNDINGS:
        found = measure_in(ROOT, names, environment)
        if isinstance(found, str):
            sys.exit(f"the golden runs failed with {environment or 'no setting'}: {found}")
        print(f"measured with {environment or 'no setting'}", flush=True)
        measurements.append(found)
    return measurements


def golden(values: Measured, others: Iterable[Measured]) -> dict[str, Any]:
    """Returns what is stored of a run: its values, and the tolerances above the smallest.

    Where a rounding draws another token, later numbers say nothing of rounding: it is passed over.

    Raises:
        ValueError: every other rounding gives other texts.
    """
    others = list(others)
    alike = [each for each in others if each.texts == values.texts]
    if others and not alike:
        raise ValueError("every other rounding gives other texts; choose another seed or a smaller learning rate")
    numbers = {name: float(f"{value:.7g}") for name, value in values.numbers.items() if value != 0}
    tolerances = {}
    for name in {name for each in (values, *alike) for name in each.numbers}:
        apart = max(abs(each.numbers.get(name, 0.0) - values.numbers.get(name, 0.0)) for each in alike)
        if FACTOR * apart > floor(name, numbers):
            tolerances[name] = float(f"{FACTOR * apart:.2g}")
    return {"texts": values.texts, "numbers": numbers, **({"tolerances": tolerances} if tolerances else {})}


def in_no_rounding(names: list[str], measure: Measure = measure_in) -> list[str]:
    """Returns those of some golden runs that leave their golden values in every other rounding, too.

    A sampled token can fall on the other side of a bound when a processor rounds differently; a changed formula gives
    other values however it is rounded.
    """
    left = list(names)
    for environment in ROUNDINGS[1:]:
        found = measure(ROOT, left, environment) if left else {}
        if isinstance(found, dict):
            left = [name for name in left if differences(stored(RUNS[name].stage)["runs"][name], found[name])]
    return left


def refresh(names: list[str]) -> None:
    """Measures golden runs in every rounding and stores those that have changed; says which."""
    first, *others = in_every_rounding(names)
    for stage in dict.fromkeys(RUNS[name].stage for name in names):
        before = stored(stage)
        runs = {name: before.get("runs", {}).get(name) for name in runs_of(stage)}
        for name in (name for name in names if RUNS[name].stage == stage):
            changes = ["new"] if runs[name] is None else differences(runs[name], first[name])
            if changes:
                if runs[name] is not None and before["version"] == version(stage):
                    print(f"{name}: VERSION {version(stage)} of {stage} did not change although results did")
                try:
                    runs[name] = golden(first[name], [each[name] for each in others])
                except ValueError as error:
                    sys.exit(f"{name}: {error}")
                print("\n  ".join([name, *changes]))
        store(stage, {name: kept for name, kept in runs.items() if kept is not None})


def main(arguments: list[str]) -> None:
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    if arguments[:1] == ["--measure"]:
        folder, out, *names = arguments[1:]
        found = run_and_measure(names, Path(folder) / "runs")
        Path(out).write_text(json.dumps({name: asdict(each) for name, each in found.items()}), encoding="utf-8")
        return
    unknown = [name for name in arguments if name not in RUNS]
    if unknown:
        sys.exit(f"unknown golden runs {', '.join(unknown)}; known: {', '.join(RUNS)}")
    refresh(arguments or list(RUNS))


if __name__ == "__main__":
    main(sys.argv[1:])
