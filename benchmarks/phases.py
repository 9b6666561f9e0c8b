"""Tokens per second of each phase of policy optimisation (generate, score, update), with one and two processes.

    python -m benchmarks.phases [--repeats 3]

A phase is timed alone: 64 prompts answered with at most 64 tokens; the reference's log-probabilities and entropies of
those responses; one update on them in forward passes of 32. Two processes work side by side, each on a batch of its
own, which is the most that data parallelism can give on this machine. Counted are response tokens.
"""

from __future__ import annotations

import os
import statistics
from dataclasses import dataclass
from typing import Any

from benchmarks.alternating import Run, Side, Work, alternate, options, write_rows
from benchmarks.workload import load_model, read, workload

PHASES = ("generate", "score", "update")
BATCH, MICROBATCH, TOKENS = 64, 32, 64


@dataclass(frozen=True)
class Throughput:
    """Response tokens per second of all processes together, and against one process."""

    phase: str
    processes: int
    tokens_per_second: float
    gain: float


def side(name: str, given: dict[str, Any]) -> Work:

    import torch

    from rlhf_core.models.policy import DecoderPolicy, pad_rows
    from rlhf_core.models.sampling import Sampling, generate

    policy = DecoderPolicy(load_model(given["folder"]).eval(), **read(given["folder"], "facts"))
    optimiser = torch.optim.Adam(policy.model.parameters(), lr=1e-5, fused=True)
    rows = sorted(read(given["folder"], "prompts")[:BATCH], key=len)
    prompts = pad_rows(rows, policy.pad_id, "left")

    def sample() -> Any:
        return generate(policy, *prompts, Sampling(TOKENS), torch.Generator().manual_seed(0))

    drawn = sample()
    tokens = float(drawn.mask.sum())

    def statistics_of(part: slice, with_entropy: bool) -> torch.Tensor:
        ids, mask = drawn.ids[part], drawn.mask[part]
        return policy.statistics(prompts[0][part], prompts[1][part], ids, mask, with_entropy=with_entropy).logprobs

    def score() -> None:
        with torch.no_grad():
            for start in range(0, BATCH, MICROBATCH):
                statistics_of(slice(start, start + MICROBATCH), True)

    def update() -> None:
        optimiser.zero_grad(set_to_none=True)
        for start in range(0, BATCH, MICROBATCH):
            (-statistics_of(slice(start, start + MICROBATCH), False).sum() / tokens).backward()
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), 1.0)
        optimiser.step()

    phase = {"generate": sample, "score": score, "update": update}[name]

    def work() -> float:
        phase()
        return tokens

    return work


def _rate(runs: list[list[Run]]) -> float:
    """Of all processes together: median over the repeats of tokens per second of the slowest."""
    together = zip(*runs, strict=True)
    return statistics.median(sum(run.amount for run in group) / max(run.seconds for run in group) for group in together)


def rows(given: Any) -> list[Throughput]:
    folder = {"folder": str(workload(given.out))}
    found: list[Throughput] = []
    for phase in PHASES:
        alone = 0.0
        for processes in (1, 2):
            sides = [Side("phases", phase, folder, threads=given.threads) for _ in range(processes)]
            rate = _rate(alternate(sides, given.repeats, given.out / "logs", together=True))
            alone = alone or rate
            found.append(Throughput(phase, processes, rate, rate / alone))
    write_rows(found, given.out / "phases.csv")
    return found


def print_phases(found: list[Throughput]) -> None:
    print(f"{'phase':<12}{'processes':>10}{'tokens/s':>12}{'gain':>8}   ({os.cpu_count()} cores)")
    for row in found:
        print(f"{row.phase:<12}{row.processes:>10}{row.tokens_per_second:>12.0f}{row.gain:>8.2f}", flush=True)


if __name__ == "__main__":
    print_phases(rows(options(__doc__).parse_args()))
