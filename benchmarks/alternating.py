"""Comparisons in which the sides take turns: each is a process of its own, and only one of them works at a time.

A side is a function of a module, such as `ours` and `peer`, that prepares its work by its options and
returns a function that does it once and says how much it did. The process keeps its preparation, so that a repeat is
the work alone. The first repeat is not timed: it counts the tokens that pass the layers of a Llama.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Done:
    """Work that was done once.

    Attributes:
        amount: in the unit of the comparison.
        tokens: that models had to read, once in each pass: real ones, the tokens of a prompt once for all of its
            answers; 0 where that is not known.
    """

    amount: float
    tokens: int = 0


#: Does the work once.
Work = Callable[[], Done]


@dataclass(frozen=True)
class Side:
    """One side of a benchmark: a module, the name of its side, its Python and its options."""

    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable


@dataclass(frozen=True)
class Run:
    """One repeat.

    Attributes:
        seconds, processor_seconds: that it took; the latter with those of processes that it started.
        amount: that was done in them.
        surplus: share of computed tokens that is padding or repeats; None where the tokens are not known.
    """

    seconds: float
    processor_seconds: float
    amount: float
    surplus: float | None = None


class Process:
    """A running side."""

    def __init__(self, side: Side, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{side.module}-{side.name}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        command = [side.python, "-m", "benchmarks.alternating", side.module, side.name, json.dumps(side.options)]
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                command, cwd=ROOT, env=environment, text=True, stderr=log,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            )  # fmt: skip

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()

    def finish(self) -> Run:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            tail = "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-15:])
            raise SystemExit(f"error: {self.log.stem} ended with code {self.process.wait()}; its last words:\n{tail}")
        return Run(**json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def alternate(sides: list[Side], repeats: int, logs: Path) -> list[list[Run]]:
    """Runs of each side, the first left out."""
    processes = [Process(side, logs) for side in sides]
    runs: list[list[Run]] = [[] for _ in sides]
    try:
        for _ in range(repeats + 1):
            for process, found in zip(processes, runs, strict=True):
                process.start()
                found.append(process.finish())
    finally:
        for process in processes:
            process.close()
    return [found[1:] for found in runs]


def processor_seconds() -> float:
    """Processor seconds of this process and of the processes that it has started, which must not end meanwhile."""
    children = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in children)


def prepared(module: str, name: str, options: dict[str, Any]) -> Work:
    """Returns the work of a side in this process."""
    work: Work = getattr(importlib.import_module(module), name)(**options)
    return work


@contextmanager
def counted_tokens() -> Iterator[Callable[[], float]]:
    """Gives a function that returns the tokens, padding included, that have passed all layers of Llamas so far."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    passed = 0.0

    def count(module: Any, inputs: tuple[Any, ...]) -> None:
        nonlocal passed
        if type(module).__name__ == "LlamaMLP":  # not imported for a side without models
            passed += inputs[0].shape[:-1].numel() / module.config.num_hidden_layers

    handle = register_module_forward_pre_hook(count)
    try:
        yield lambda: passed
    finally:
        handle.remove()


def _serve(work: Work, channel: Any) -> None:
    surplus: float | None = None
    for repeat, _ in enumerate(sys.stdin):
        with nullcontext() if repeat else counted_tokens() as tokens:
            started, busy = time.perf_counter(), processor_seconds()
            done = work()
            run = Run(time.perf_counter() - started, processor_seconds() - busy, done.amount, surplus)
        if tokens and done.tokens:
            surplus = max(0.0, 1 - done.tokens / tokens())
        print(json.dumps(asdict(run)), file=channel, flush=True)


def main() -> None:
    """Serves one side: whatever libraries print goes to the log, the results alone to the parent."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, name, given = sys.argv[1:]
    _serve(prepared(module, name, json.loads(given)), channel)


if __name__ == "__main__":
    main()
