"""Shares of the time of this project's side of a comparison that models take: what could still be saved.

    python -m benchmarks.limits [--repeats 3] [ppo ...]

One thread: the share spent in forward and backward passes of transformers' models, and the share of that on padding;
all else free, the side would be `at most` so many times as fast.
"""

from __future__ import annotations

import argparse
import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.alternating import Work
from benchmarks.workload import ROOT, read, workload

COMPARISONS = ("reward_model", "dpo", "grpo", "ppo")


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
    columns = ["comparison", "models", "padding", "at most"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for name in options.comparisons:
        work = importlib.import_module(f"benchmarks.{name}").ours(str(folder))
        work()
        part = in_models(work, pad_id, options.repeats)
        print(f"| {name} | {part['models']:.0%} | {part['padding']:.0%} | {1 / part['models']:.2f} |", flush=True)


if __name__ == "__main__":
    main()
