"""Seconds until `rewardsmith plan` refuses a setting that is not valid, and until it says that all are.

    python -m benchmarks.refusals [--repeat 3]

Each setting is changed in a copy of params/; the seconds are those of the whole command, start of Python included. The
aim is below 5.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from tasks.params.scales import scale_entries

PROJECT = Path(__file__).resolve().parents[1]
AIM = 5.0
#: The page of PAR's settings of PPO.
PAR_PPO = scale_entries(PROJECT, "testbed", "policy")["par_ppo"].file.as_posix()
#: (page, entry, setting, value)
BROKEN: tuple[tuple[str, str, str, Any], ...] = (
    ("par/rows.yaml", "vanilla", "credit", "evensplit"),
    ("par/rows.yaml", "vanilla", "credits", "even_split"),
    ("par/rows.yaml", "vanilla", "weight", float("nan")),
    ("par/rows.yaml", "vanilla", "optimiser", {"kind": "grpo", "group_size": 1}),
    ("par/rows.yaml", "vanilla", "lora", {"rank": 1_000_000}),
    ("par/reward_models.yaml", "standard", "aggregation", "meen"),
    ("scales/testbed/backbones.yaml", "gemma2-2b", "precision", "fp16"),
    (PAR_PPO.removeprefix("params/"), "par_ppo", "prompt_limit", 1_000_000),
)


def refusal(page: str, entry: str, setting: str, value: Any) -> tuple[float, str]:
    """Returns the seconds of a refused plan, and the first line of what it said."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        shutil.copytree(PROJECT / "params", tree / "params")
        shutil.copyfile(PROJECT / "params.yaml", tree / "params.yaml")
        file = tree / "params" / page
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        content[entry] = {**content[entry], setting: value}
        file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tasks.command_line", "plan", "par", "vanilla"],
            cwd=tree,
            env={**os.environ, "PYTHONPATH": str(PROJECT)},
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - began
    if done.returncode != 2:
        raise SystemExit(f"{page}:{entry}: {setting} is {value!r}, and the plan ended with {done.returncode}")
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    return seconds, said[0]


def check_seconds() -> float:
    """Returns the seconds of a check of every page as it is."""
    began = time.monotonic()
    code = "from pathlib import Path\nfrom tasks.graph.check import check_all\ncheck_all(Path())"
    subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=True)
    return time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the median is printed")
    given = parser.parse_args()
    for case in BROKEN:
        found = [refusal(*case) for _ in range(given.repeat)]
        print(f"{statistics.median(seconds for seconds, _ in found):5.1f} s  {found[0][1]}", flush=True)
    every = statistics.median(check_seconds() for _ in range(given.repeat))
    print(f"{every:5.1f} s  every page checked, all valid (aim of a refusal: {AIM} s)")


if __name__ == "__main__":
    main()
