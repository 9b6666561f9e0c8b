"""Shares of the time of this project's side of a comparison, by kind of operation: what could still be saved.

    python -m benchmarks.limits [--repeats 3] [ppo ...]

One thread under torch's profiler, which counts each operation's own time: matrix products and attention, whose number
the method fixes but for padding; all other operations, and the largest of them; and what is outside of operations
(Python, the profiler's own time among it).
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.alternating import ROOT
from benchmarks.workload import workload

COMPARISONS = ("reward_model", "dpo", "grpo", "ppo")
#: Parts of an operation's name, lower case.
PRODUCTS = ("mm", "linear", "matmul", "scaled_dot_product", "flash_attention")


def shares(operations: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Returns shares of some seconds: products and attention, other operations, the largest of these, and outside.

    Args:
        operations: seconds of an operation's own by its name.
        seconds: that everything took.
    """
    products = {name for name in operations if any(part in name.lower() for part in PRODUCTS)}
    others = [own for name, own in operations.items() if name not in products]
    found = {"products": sum(operations[name] for name in products), "others": sum(others)}
    found |= {"largest": max(others, default=0.0), "outside": seconds - sum(operations.values())}
    return {name: own / seconds for name, own in found.items()}


def profiled(name: str, folder: Path, repeats: int) -> dict[str, float]:
    """Returns the shares of this project's side of a comparison, the median over repeats after one that warms up."""
    from torch.profiler import ProfilerActivity, profile

    work = importlib.import_module(f"benchmarks.{name}").side("ours", {"folder": str(folder)})
    work()
    found: list[dict[str, float]] = []
    for _ in range(repeats):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            begin = time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
        found.append(shares({row.key: row.self_cpu_time_total / 1e6 for row in profiler.key_averages()}, seconds))
    return {part: statistics.median(one[part] for one in found) for part in found[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "comparisons", nargs="*", default=list(COMPARISONS), metavar="NAME", help="; ".join(COMPARISONS)
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=ROOT / ".work" / "benchmarks")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    folder = workload(options.out)
    print("| comparison | products and attention | others | the largest of them | outside |\n|---|---|---|---|---|")
    for name in options.comparisons:
        part = profiled(name, folder, options.repeats)
        print(f"| {name} | {' | '.join(f'{share:.0%}' for share in part.values())} |", flush=True)


if __name__ == "__main__":
    main()
