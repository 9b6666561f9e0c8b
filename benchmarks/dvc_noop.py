"""Seconds of `dvc repro`, `dvc status` and `rewardsmith plan` that find nothing to do, on the project's own graph.

    python -m benchmarks.dvc_noop [--graphs demo par all] [--repeats 3] [--out .work/benchmarks]

The temporary repository has the params/ and dvc.yaml files of the project at testbed scale. Its outputs are small files
that nobody trained, known to DVC by `dvc commit`. `demo` is the root dvc.yaml, a paper's name its whole matrix as a
user names it (pipelines/testbed/<paper>/dvc.yaml, with every stage above it), `all` every matrix together. Prints a
table; writes dvc_noop.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tasks.graph import dvc_files as graph
from tasks.graph.matrix import build
from tasks.graph.rows import papers
from tasks.params.settings import DEFAULT_SCALE
from tasks.params.yaml_files import read_mapping

PROJECT = Path(__file__).resolve().parents[1]
DEMO, ALL = "demo", "all"


def call(root: Path, *arguments: str, module: str = "dvc") -> tuple[float, float]:
    """Runs DVC, or another module, in the repository; returns its wall seconds, and its CPU seconds, on which other
    work has less effect."""
    environment = {**os.environ, "DVC_NO_ANALYTICS": "true", "DO_NOT_TRACK": "true", "PYTHONPATH": str(PROJECT)}
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-P", "-m", module, *arguments],
        cwd=root,
        env=environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, busy


def make_repository(root: Path, name: str) -> list[Path]:
    """Writes a repository whose stages have all run, by the lock and the outputs; returns its dvc.yaml files."""
    for part in ("params", "params.yaml", "tasks"):
        copy = shutil.copytree if (PROJECT / part).is_dir() else shutil.copy
        copy(PROJECT / part, root / part)
    shared = graph.matrix_folders(DEFAULT_SCALE, "x")[0]
    wanted = {DEMO: [], ALL: [folder for folder in build(root) if folder.parts[1:2] == (DEFAULT_SCALE,)]}
    folders = wanted.get(name, [folder for folder in graph.matrix_folders(DEFAULT_SCALE, name) if name in papers(root)])
    graph.write(root, folders)
    files = [Path("dvc.yaml"), *(folder / "dvc.yaml" for folder in dict.fromkeys([shared, *folders]))]
    files = [file for file in files if (root / file).exists()]
    for file in files:
        for stage in read_mapping(root / file)["stages"].values():
            for out in (*stage["outs"], *stage.get("metrics", ())):
                path = root / out if out.endswith(".json") else root / out / "metrics.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f'{{"{out}": 1}}\n', encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    call(root, "init", "-q")
    call(root, "commit", "-q", "-f", *map(str, files))
    return files


def stages_of(root: Path, files: Sequence[Path]) -> int:
    """Counts the stages of some dvc.yaml files."""
    return sum(len(read_mapping(root / file)["stages"]) for file in files)


def measure(name: str, repeats: int) -> dict[str, float | int | str]:
    """Returns medians of the no-op times of one graph."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        files = make_repository(root, name)
        targets = [str(file) for file in files] if name == ALL else [str(files[-1])]
        call(root, "repro", "-q", *targets)
        found: dict[str, float | int | str] = {
            "graph": name,
            "stages": stages_of(root, [Path(target) for target in targets]),
        }
        asked = [] if name == DEMO else [name, "--full"]
        commands = dict.fromkeys(("repro", "status"), ("dvc", "-q", *targets))
        for command, (module, *words) in {**commands, "plan": ("tasks.command_line", *asked)}.items():
            times = [call(root, command, *words, module=module) for _ in range(repeats)]
            for kind, values in zip(("seconds", "cpu_seconds"), zip(*times, strict=True), strict=True):
                found[f"{command}_{kind}"] = round(statistics.median(values), 2)
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--graphs", nargs="+", default=[DEMO, "par", ALL])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"))
    options = parser.parse_args(arguments)
    rows = []
    heads = "".join(f"{f'{command} s':>10}{'CPU s':>8}" for command in ("repro", "status", "plan"))
    print(f"{'graph':<18}{'stages':>8}{heads}")
    for name in options.graphs:
        row = measure(name, options.repeats)
        rows.append(row)
        cells = [f"{row[f'{c}_seconds']:>10}{row[f'{c}_cpu_seconds']:>8}" for c in ("repro", "status", "plan")]
        print(f"{name:<18}{row['stages']:>8}{''.join(cells)}", flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "dvc_noop.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    print(f"wrote {options.out / 'dvc_noop.csv'}")


if __name__ == "__main__":
    main()
