"""Comparisons in which the sides take turns: each is a process of its own, and only one of them works at a time.

A side is a function of a module, such as `ours` and `peer`, that prepares its work by its options and
returns a function that does it once and says how much it did. The process keeps its preparation, so that a repeat is
the work alone; the first is thrown away.
"""

from __future__ import annotations

import csv
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.workload import ROOT, workload

#: Does the work once and says how much of it there was.
Work = Callable[[], float]


@dataclass(frozen=True)
class Side:
    """One side of a benchmark: a module, the name of its side, its Python and its options."""

    module: str
    name: str
    options: dict[str, Any] = field(default_factory=dict)
    python: str = sys.executable
    threads: int = 1


@dataclass(frozen=True)
class Run:
    """One repeat: wall and processor seconds, and what was done in them."""

    seconds: float
    processor_seconds: float
    amount: float


class Process:
    """A running side."""

    def __init__(self, side: Side, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.log = logs / f"{side.module}-{side.name}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": str(side.threads),
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


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        what: is compared.
        ours, peer: medians, in `unit`.
        ratio: median over the repeats of ours against the peer's, with the smallest and the largest.
        processor_ratio: median ratio in processor seconds, which other work on the machine disturbs less.
        target: what the ratio should reach.
    """

    what: str
    unit: str
    ours: float
    peer: float
    ratio: float
    low: float
    high: float
    processor_ratio: float
    target: float

    @property
    def reached(self) -> bool:
        return self.ratio >= self.target


def speed_row(what: str, unit: str, ours: list[Run], peer: list[Run], target: float) -> Row:
    """Amount per second of both sides, repeat by repeat."""
    rates = [[run.amount / run.seconds for run in runs] for runs in (ours, peer)]
    busy = [[run.amount / run.processor_seconds for run in runs] for runs in (ours, peer)]
    ratios = [a / b for a, b in zip(*rates, strict=True)]
    return Row(
        what, unit, statistics.median(rates[0]), statistics.median(rates[1]), statistics.median(ratios), min(ratios),
        max(ratios), statistics.median(a / b for a, b in zip(*busy, strict=True)), target,
    )  # fmt: skip


def against_peer(name: str, what: str, unit: str, version: str, target: float, given: Any) -> list[Row]:
    """The row of a module whose sides `ours` and `peer` work on the same folder, the peer in its environment."""
    work = {"folder": str(workload(given.out))}
    sides = [
        Side(f"benchmarks.{name}", "ours", work, threads=given.threads),
        Side(f"benchmarks.{name}", "peer", work, peer_python(given.peers, f"trl-{version}"), given.threads),
    ]
    runs = alternate(sides, given.repeats, given.out / "logs")
    return [speed_row(f"{what}, TRL {version}", unit, *runs, target)]


def print_rows(rows: list[Row]) -> None:
    print(f"{'':<44}{'ours':>10}{'peer':>10} {'unit':<12}{'ratio':>7}{'range':>13}{'CPU':>7}{'target':>8}")
    for row in rows:
        spread = f"{row.low:.2f}-{row.high:.2f}"
        print(
            f"{row.what:<44}{row.ours:>10.4g}{row.peer:>10.4g} {row.unit:<12}{row.ratio:>7.2f}{spread:>13}"
            f"{row.processor_ratio:>7.2f}{'≥' + format(row.target, '.4g'):>8}{'' if row.reached else '  missed'}",
            flush=True,
        )


def write_rows(rows: list[Any], path: Path) -> None:
    """CSV of dataclass instances of one kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def peer_python(peers: Path, name: str) -> str:
    """The Python of a peer's virtual environment."""
    python = peers / name / "bin" / "python"
    if not python.exists():
        raise SystemExit(f"error: no {python}; install the peers with `make bench-peers`")
    return str(python)


def processor_seconds() -> float:
    """Processor seconds of this process and of the processes that it has started, which must not end meanwhile."""
    children = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(times.user + times.system for times in children)


def _serve(work: Work, channel: Any) -> None:
    for _ in sys.stdin:
        started, busy = time.perf_counter(), processor_seconds()
        amount = work()
        run = Run(time.perf_counter() - started, processor_seconds() - busy, amount)
        print(json.dumps(asdict(run)), file=channel, flush=True)


def main() -> None:
    """Serves one side: whatever libraries print goes to the log, the results alone to the parent."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    module, name, given = sys.argv[1:]
    import torch

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    _serve(getattr(importlib.import_module(module), name)(**json.loads(given)), channel)


if __name__ == "__main__":
    main()
