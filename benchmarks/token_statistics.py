"""Log-probability and entropy of tokens, fused with the output projection, against log-softmax and gather.

Hidden size 256, float32. Time is of alternating repeats; memory is how much the first call raises the peak resident
size of a fresh process that holds hidden states and weights. The first line is what the targets are set for; the
others are the curve over vocabulary and number of tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.alternating import Row, Run, Side, Work, alternate

HIDDEN = 256
#: The least growth that can be told, bytes.
PAGE = 4096
#: (tokens, vocabulary), the one with targets first.
CURVE = ((2048, 131072), (512, 131072), (2048, 32768), (2048, 8192 + 1024))
#: Of time and memory, forward alone and with backward.
TARGETS = {False: (1.0, 0.15), True: (1.3, 0.4)}


def _work(statistics_of: Callable[..., Any], tokens: int, vocabulary: int, backward: bool) -> Work:
    """Returns the work of a function of hidden states, targets and output projection."""
    import torch

    torch.manual_seed(0)
    hidden = torch.randn(tokens, HIDDEN)
    output = torch.nn.Linear(HIDDEN, vocabulary, bias=False)
    targets = torch.randint(0, vocabulary, (tokens,))

    def work() -> float:
        if not backward:
            with torch.no_grad():
                statistics_of(hidden, targets, output)
        else:
            output.weight.grad = None
            logprobs, entropies = statistics_of(hidden.clone().requires_grad_(), targets, output)
            (logprobs.sum() + 0.01 * entropies.sum()).backward()
        return float(tokens)

    return work


def ours(**shape: Any) -> Work:
    from rlhf_core.models.logprobs import token_statistics

    return _work(token_statistics, **shape)


def peer(**shape: Any) -> Work:
    def statistics_of(hidden: Any, targets: Any, output: Any) -> tuple[Any, Any]:
        log_p = output(hidden).log_softmax(dim=-1)
        return log_p.gather(1, targets[:, None]).squeeze(1), -(log_p.exp() * log_p).sum(dim=-1)

    return _work(statistics_of, **shape)


def _rows(shape: dict[str, Any], runs: list[list[Run]]) -> list[Row]:
    seconds = [statistics.median(run.seconds for run in found) for found in runs]
    growth = [max(found[0].growth, PAGE) for found in runs]
    ratios = [a.seconds / b.seconds for a, b in zip(*runs, strict=True)]
    busy = statistics.median(a.processor_seconds / b.processor_seconds for a, b in zip(*runs, strict=True))
    name = f"{shape['tokens']} x {shape['vocabulary']}, forward{' + backward' if shape['backward'] else ''}"
    time_target, memory_target = TARGETS[shape["backward"]]
    memory = growth[0] / growth[1]
    return [
        Row(f"{name}, time", "s", *seconds, statistics.median(ratios), min(ratios), max(ratios), busy, time_target,
            more_is_better=False),
        Row(f"{name}, peak memory", "MiB", growth[0] / 2**20, growth[1] / 2**20, memory, memory, memory, memory,
            memory_target, more_is_better=False),
    ]  # fmt: skip


def rows(given: Any) -> list[Row]:
    found: list[Row] = []
    for tokens, vocabulary in CURVE:
        for backward in (False, True):
            shape = {"tokens": tokens, "vocabulary": vocabulary, "backward": backward}
            sides = [Side("token_statistics", name, shape, threads=given.threads) for name in ("ours", "peer")]
            found += _rows(shape, alternate(sides, given.repeats, given.out / "logs"))
    return found
