"""Seconds that a run adds to each stage: forked from a process with the libraries, and in a Python of its own.

    python -m benchmarks.stage_start [--stages 5] [--out .work/benchmarks]

The stages of a temporary repository take milliseconds themselves. They are run one after another by the
scheduler's own code (`flows.stage_run`) without Prefect, in turn in both ways. Each imports what a policy imports, as
most stages do, and only prints its help. Prints the median seconds of a stage in both ways and their ratio, and those
of the first forked one, which waits for the server's imports; writes stage_start.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import yaml

from flows.slots import Grant
from flows.stage_run import Command, RunningStages, run_stage, stage_environment
from tasks.dvc.stage_results import StageResults
from tasks.running.fork_server import PROJECT, ForkServer

#: The stages' command: it says what it takes, after a policy's imports.
COMMAND = "python -P -m tasks.policy --help"
CORE = Grant(1, (), 0.0).environment()


def make_repository(root: Path, stages: int) -> None:
    """Writes a repository of stages whose outputs are there, and which DVC runs all the same."""
    names = [f"{way}-{number}" for number in range(stages) for way in ("forked", "started")]
    content = {name: {"cmd": COMMAND, "outs": [{f"{name}.txt": {"persist": True}}]} for name in names}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": content}), encoding="utf-8")
    for name in names:
        (root / f"{name}.txt").write_text(name, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "dvc", "init", "-q", "--no-scm"], cwd=root, check=True)


def timed(root: Path, name: str, server: ForkServer | None) -> float:
    """Runs a stage; returns its wall seconds."""
    began = time.perf_counter()
    command = Command(COMMAND, name, name, name, CORE)
    with closing(StageResults(root, [name])) as results:
        run_stage(root, command, results, running=RunningStages(), log=lambda _: None, server=server)
    return time.perf_counter() - began


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(".work/benchmarks"))
    options = parser.parse_args(arguments)
    os.environ["DVC_NO_ANALYTICS"] = "true"
    walls: dict[str, list[float]] = {"forked": [], "started": []}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_repository(root, options.stages)
        server = ForkServer(root, stage_environment(PROJECT, CORE))
        server.begin(["policy", "policy", "policy"])
        began = time.perf_counter()
        for number in range(options.stages):
            for way, how in (("forked", server), ("started", None)):
                walls[way].append(timed(root, f"{way}-{number}", how))
        print(f"{2 * options.stages} stages in {time.perf_counter() - began:.1f} s, load {os.getloadavg()[0]:.1f}")
    first = walls["forked"].pop(0)
    medians = {way: statistics.median(values) for way, values in walls.items()}
    ratio = medians["started"] / medians["forked"]
    print(f"first forked stage, imports included {first:.2f} s")
    print(f"seconds of a stage: forked {medians['forked']:.2f}, started {medians['started']:.2f}, ratio {ratio:.1f}")
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "stage_start.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["way", "stage", "seconds"])
        writer.writerows([way, number, round(value, 3)] for way in walls for number, value in enumerate(walls[way]))


if __name__ == "__main__":
    main()
