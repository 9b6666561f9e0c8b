"""Shares of the time of this project's side of a comparison: what could still be saved.

    python -m benchmarks.limits [--repeats 3] [ppo ...]

One thread. Under torch's profiler, which counts each operation's own time: matrix products and attention; all other
operations, and the largest of them; what is outside of operations (Python, the profiler's own time among it). Without
it: the share spent in forward and backward passes of transformers' models, and the share of that on padding; all else
free, the side would be `at most` so many times as fast. Smaller microbatches are padded less: `of 8` and `of 32` are
the seconds beside microbatches of 16 (PPO, GRPO).
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternating import ROOT, Work
from benchmarks.workload import read, workload

COMPARISONS = ("reward_model", "dpo", "grpo", "ppo")
#: Parts of an operation's name, lower case.
PRODUCTS = ("mm", "linear", "matmul", "scaled_dot_product", "flash_attention")
#: Rows of a forward pass.
OTHER_MICROBATCHES = (8, 32)


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


@dataclass
class ModelTime:
    """Seconds in forward and backward passes of a model.

    Attributes:
        all: of them.
        real: the same, each pass by the share of its positions that are no padding.
        last: that share in the last forward pass, which a backward pass takes over.
    """

    all: float = 0.0
    real: float = 0.0
    last: float = 1.0

    def add(self, seconds: float) -> None:
        self.all += seconds
        self.real += self.last * seconds


@contextmanager
def timed_models(model: type, pad_id: int) -> Iterator[ModelTime]:
    """Times forward passes of a class of models, and backward passes.

    Args:
        model: whose `forward` takes input_ids [rows, length], and an attention_mask of any form or none;
            one of [rows, all positions] tells which rows have ended.
        pad_id: the id of padding, which no real token has.
    """
    import torch

    time_of = ModelTime()
    forward, backward = model.forward, torch.Tensor.backward  # type: ignore[attr-defined]

    def timed(call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if (ids := kwargs.get("input_ids")) is not None:
                real, mask = ids != pad_id, kwargs.get("attention_mask")
                if mask is not None and mask.ndim == ids.ndim:
                    real = real & (mask[:, -ids.shape[1] :] > 0)
                time_of.last = float(real.float().mean())
            begin = time.perf_counter()
            result = call(*args, **kwargs)
            time_of.add(time.perf_counter() - begin)
            return result

        return wrapper

    model.forward, torch.Tensor.backward = timed(forward), timed(backward)  # type: ignore
    try:
        yield time_of
    finally:
        model.forward, torch.Tensor.backward = forward, backward  # type: ignore


def profiled(work: Work, repeats: int) -> dict[str, float]:
    """Returns the shares of operations, the median over repeats."""
    from torch.profiler import ProfilerActivity, profile

    found: list[dict[str, float]] = []
    for _ in range(repeats):
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            begin = time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
        found.append(shares({row.key: row.self_cpu_time_total / 1e6 for row in profiler.key_averages()}, seconds))
    return {part: statistics.median(one[part] for one in found) for part in found[0]}


def in_models(work: Work, pad_id: int, repeats: int) -> dict[str, float]:
    """Returns the share of models, and the share of their time on padding, the median over repeats."""
    from transformers import LlamaModel

    found: list[dict[str, float]] = []
    for _ in range(repeats):
        with timed_models(LlamaModel, pad_id) as models:
            begin = time.perf_counter()
            work()
            seconds = time.perf_counter() - begin
        found.append({"models": models.all / seconds, "padding": 1 - models.real / models.all})
    return {part: statistics.median(one[part] for one in found) for part in found[0]}


def by_microbatch(name: str, folder: Path, repeats: int) -> dict[int, float]:
    """Returns processor seconds in other microbatches beside those in the comparison's own, all taking turns."""
    module = importlib.import_module(f"benchmarks.{name}")
    own: int = module.MICROBATCH
    works: dict[int, Work] = {}
    seconds: dict[int, list[float]] = {size: [] for size in (own, *OTHER_MICROBATCHES)}
    try:
        for repeat in range(repeats + 1):
            for size in seconds:
                module.MICROBATCH = size  # a side reads it when it is made, and while it works
                if not repeat:
                    works[size] = module.side("ours", {"folder": str(folder)})
                begin = time.process_time()
                works[size]()
                if repeat:
                    seconds[size].append(time.process_time() - begin)
    finally:
        module.MICROBATCH = own
    return {size: statistics.median(seconds[size]) / statistics.median(seconds[own]) for size in OTHER_MICROBATCHES}


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
    pad_id = read(str(folder), "facts")["pad_id"]
    columns = ["comparison", "products and attention", "others", "the largest of them", "outside"]
    columns += ["models", "padding", "at most", *(f"of {size}" for size in OTHER_MICROBATCHES)]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.comparisons:
        module = importlib.import_module(f"benchmarks.{name}")
        work = module.side("ours", {"folder": str(folder)})
        work()
        part = profiled(work, options.repeats) | in_models(work, pad_id, options.repeats)
        cells = [f"{share:.0%}" for share in part.values()] + [f"{1 / part['models']:.2f}"]
        if hasattr(module, "MICROBATCH"):
            cells += [f"{ratio:.2f}" for ratio in by_microbatch(name, folder, options.repeats).values()]
        print(f"| {' | '.join([name, *cells, *[''] * (len(columns) - 1 - len(cells))])} |", flush=True)


if __name__ == "__main__":
    main()
