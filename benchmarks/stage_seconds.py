"""Seconds of every stage of one testbed row, run one after the other on an otherwise idle machine.

    python -m benchmarks.stage_seconds [--row segment] [--seed 1000] [--threads N] [--out DIRECTORY]

Training seconds leave out the evaluation that `sft` and `policy` end with only where the stage reports them apart;
the table gives whole-stage seconds, process start included. The default seed is none that results are reported for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.params.settings import DEFAULT_SCALE

#: Seconds a stage may take on two idle cores.
TARGETS = {"sft": 90, "reward_model": 20, "policy": 45}


def commands(paper: str, row: str, seed: int, out: Path) -> dict[str, list[str]]:
    """Command line of each stage that a row needs, in order, its results below `out`."""
    root = Path()
    place = f"results/{DEFAULT_SCALE}/"
    found = {}
    for item in Scale(root, DEFAULT_SCALE).row(load_rows(root, paper)[row], seed):
        words = ["-m", f"tasks.{item.module}"]
        for name, value in item.arguments.items():
            values = value if isinstance(value, tuple) else (str(value),)
            words += [f"--{name.replace('_', '-')}", *(v.replace(place, f"{out}/") for v in values)]
        found[item.module] = [*words, "--out", item.out.replace(place, f"{out}/")]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--paper", default="segment")
    parser.add_argument("--row", default="segment")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
    threads = str(given.threads)
    environment = {**os.environ, "REWARDSMITH_THREADS": threads, "OMP_NUM_THREADS": threads}
    print(f"{'stage':<14}{'seconds':>9}{'target':>9}   ({threads} threads)")
    for stage, arguments in commands(given.paper, given.row, given.seed, out).items():
        started = time.monotonic()
        subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        print(f"{stage:<14}{time.monotonic() - started:>9.1f}{TARGETS.get(stage, ''):>9}", flush=True)


if __name__ == "__main__":
    main()
