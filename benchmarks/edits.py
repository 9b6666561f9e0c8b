"""Throughput of token edit alignment, rapidfuzz's against the full table of distances in Python.

    python -m benchmarks.edits [--pairs 2000] [--repeats 3]

Pairs are a solution and its rewrite: random tokens, one in ten of them replaced, inserted or deleted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Sequence

from rlhf_core.minimum_editing import edited_tokens, edited_tokens_naive

Pair = tuple[list[int], list[int]]
#: Tokens of a solution: of the testbed, of gsm8k, of a long one.
LENGTHS = (32, 128, 512)
EDITS_PER_TOKEN = 0.1


def edit(source: Sequence[int], rng: random.Random) -> list[int]:
    """The tokens with about one in ten changed."""
    target: list[int] = []
    for token in source:
        kind = rng.choice(("replace", "insert", "delete")) if rng.random() < EDITS_PER_TOKEN else "keep"
        target += {"keep": [token], "delete": []}.get(kind, [rng.randrange(32000)])
        target += [token] if kind == "insert" else []
    return target


def pairs(count: int, length: int) -> list[Pair]:
    rng = random.Random(length)
    sources = [[rng.randrange(32000) for _ in range(length)] for _ in range(count)]
    return [(source, edit(source, rng)) for source in sources]


def tokens_per_second(align: Callable[[Sequence[int], Sequence[int]], list[bool]], given: list[Pair]) -> float:
    start = time.process_time()
    for source, target in given:
        align(source, target)
    return sum(len(target) for _, target in given) / (time.process_time() - start)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=2000, help="of the shortest length; fewer of the others")
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args(arguments)
    print("tokens of a solution, tokens of rewrites aligned in a second of processor time: ours, naive, ratio")
    for length in LENGTHS:
        count = max(1, given.pairs * LENGTHS[0] // length)
        made = pairs(count, length)
        few = made[: max(1, count * LENGTHS[0] // length // 4)]
        ours = statistics.median(tokens_per_second(edited_tokens, made) for _ in range(given.repeats))
        naive = statistics.median(tokens_per_second(edited_tokens_naive, few) for _ in range(given.repeats))
        print(f"{length:5d} {ours:12,.0f} {naive:12,.0f} {ours / naive:8.0f} x")


if __name__ == "__main__":
    main()
