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

from tasks.settings import read_settings

#: Seconds a stage may take on two idle cores.
TARGETS = {"sft": 90, "reward_model": 20, "policy": 45}


def commands(row: str, seed: int, out: Path) -> dict[str, list[str]]:
    """Command line of each stage, in order."""
    spec = read_settings(Path(f"params/segment/rows/{row}.yaml"))
    scale = "params/scales/testbed"
    data, tokenizer = f"{out}/data/result", f"{out}/tokenizer/result"
    sft, entropies = f"{out}/sft/result", f"{out}/entropies/result"
    model, normaliser = f"{out}/reward_model/result", f"{out}/normaliser/result"
    evaluation = ["--evaluation", f"{scale}/evaluation.yaml"]
    upstream = ["--data", data, "--sft", sft]
    seeded = ["--seed", str(seed)]
    backbone = f"{scale}/backbones/{spec['backbone']}.yaml"
    reward_model = f"params/segment/reward_models/{spec['reward_model']}.yaml"
    return {
        "prepare": ["--spec", f"{scale}/data.yaml"],
        "tokenizer": ["--spec", f"{scale}/tokenizer.yaml", "--data", data],
        "sft": ["--spec", backbone, *evaluation, "--data", data, "--tokenizer", tokenizer, *seeded],
        "entropies": ["--spec", f"{scale}/entropies.yaml", *upstream],
        "reward_model": [
            *("--spec", reward_model, "--scale", f"{scale}/reward_model.yaml"),
            *(*upstream, "--entropies", entropies, *seeded),
        ],
        "normaliser": [
            *("--scale", f"{scale}/normaliser.yaml", *upstream),
            *("--entropies", entropies, "--reward-model", model),
        ],
        "policy": [
            *("--row", f"params/segment/rows/{row}.yaml", "--scale", f"{scale}/policy.yaml", *evaluation),
            *(*upstream, "--entropies", entropies, "--reward-model", model, "--normaliser", normaliser, *seeded),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--row", default="segment")
    parser.add_argument("--seed", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    out = given.out or Path(tempfile.mkdtemp(prefix="rewardsmith-"))
    threads = str(given.threads)
    environment = {**os.environ, "REWARDSMITH_THREADS": threads, "OMP_NUM_THREADS": threads}
    print(f"{'stage':<14}{'seconds':>9}{'target':>9}   ({threads} threads)")
    for stage, arguments in commands(given.row, given.seed, out).items():
        started = time.monotonic()
        subprocess.run(
            [sys.executable, "-m", f"tasks.{stage}", *arguments, "--out", str(out / stage)],
            env=environment,
            check=True,
            stderr=subprocess.DEVNULL,
        )
        print(f"{stage:<14}{time.monotonic() - started:>9.1f}{TARGETS.get(stage, ''):>9}", flush=True)


if __name__ == "__main__":
    main()
