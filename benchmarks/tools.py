"""Tool rewards against a tool server with latency and no cache hit: one by one, as a batch, and beside other work.

    python -m benchmarks.tools [--texts 128] [--latency 0.05] [--concurrency 16]

The first two count texts per second. The third is a training step in which `--work` seconds of generation and updates
follow each other: calls start when a part of the responses is there, and what is waited for at the end is counted.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

from benchmarks.tool_server import ToolServer
from rlhf_core.aspects.aspect import checked_scores
from rlhf_core.aspects.language_tool import LanguageToolGrammar
from rlhf_core.testbed.translation import TranslationWorld

TARGET = 5.0
"""Times the one-by-one throughput that a batch must reach."""

WAITING = 0.1
"""Largest share of a training step spent waiting."""


@dataclass(frozen=True)
class Throughput:
    """What was measured: texts per second, and the share of a step spent waiting."""

    one_by_one: float
    batched: float
    waiting: float

    @property
    def ratio(self) -> float:
        return self.batched / self.one_by_one


def measure(texts: int, latency: float, concurrency: int, work: float, parts: int = 4) -> Throughput:
    """Measures on fresh texts, a server with `latency` seconds and `parts` generation batches of a step."""
    world = TranslationWorld()
    said = [row["response"] for row in world.sft_examples(6 * texts, 0)]
    said = list(dict.fromkeys(said))[: 2 * texts + max(8, texts // 8)]
    alone, batch, step = said[: len(said) - 2 * texts], said[-2 * texts : -texts], said[-texts:]
    with ToolServer(latency) as server:

        def aspect() -> LanguageToolGrammar:
            return LanguageToolGrammar(server.url, concurrency=concurrency)

        one, many, beside = aspect(), aspect(), aspect()
        started = time.monotonic()
        for text in alone:
            checked_scores(one, [{}], [text])
        single = len(alone) / (time.monotonic() - started)
        started = time.monotonic()
        checked_scores(many, [{}] * texts, batch)
        together = texts / (time.monotonic() - started)
        started = time.monotonic()
        size = max(1, texts // parts)
        for start in range(0, texts, size):
            time.sleep(work / (2 * parts))  # a part of the responses is generated
            beside.prefetch(step[start : start + size])
        time.sleep(work / 2)  # log-probabilities and values of the rollout
        checked_scores(beside, [{}] * texts, step)
        waiting = beside.client.usage.waited_s / (time.monotonic() - started)
        for each in (one, many, beside):
            each.client.close()
    return Throughput(single, together, waiting)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=128)
    parser.add_argument("--latency", type=float, default=0.05)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--work", type=float, default=3.0, help="seconds of a training step beside the tool")
    given = parser.parse_args()
    found = measure(given.texts, given.latency, given.concurrency, given.work)
    print(f"{given.texts} texts, {1000 * given.latency:.0f} ms latency, {given.concurrency} at once, no cache hit")
    reached = "reached" if found.ratio >= TARGET else "missed"
    print(
        f"one by one {found.one_by_one:.1f} texts/s, batched {found.batched:.1f} texts/s: {found.ratio:.1f} x, target "
        f"{TARGET:.0f} x {reached}"
    )
    reached = "reached" if found.waiting <= WAITING else "missed"
    print(
        f"waiting {100 * found.waiting:.1f} % of a step of {given.work:.1f} s, target {100 * WAITING:.0f} % {reached}"
    )


if __name__ == "__main__":
    main()
