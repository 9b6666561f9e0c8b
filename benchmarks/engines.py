"""Rollout engines: response tokens per second of continuous batching against the loop, in one run.

    python -m benchmarks --only engines

Both sample the same 64 responses of at most 64 tokens. The second line adds the forward pass in which training computes
the log-probabilities of what continuous batching sampled; the loop needs none.
"""

from __future__ import annotations

from typing import Any

from benchmarks.alternating import Row, Side, Work, alternate, speed_row
from benchmarks.workload import load_model, read, workload

BATCH, MICROBATCH, TOKENS = 64, 32, 64
#: The loop's own speed: on a CPU nothing faster is expected, and a GPU has its own check.
TARGET = 1.0


def side(name: str, given: dict[str, Any]) -> Work:
    import torch

    from rlhf_core.models.generation import generate
    from rlhf_core.models.policy import DecoderPolicy, pad_rows
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.policy_optimisation.experience import score

    policy = DecoderPolicy(load_model(given["folder"]).eval(), **read(given["folder"], "facts"))
    prompts = pad_rows(sorted(read(given["folder"], "prompts")[:BATCH], key=len), policy.pad_id, "left")
    sampling = Sampling(TOKENS, engine=given["engine"])

    def work() -> float:
        drawn = generate(policy, *prompts, sampling, torch.Generator().manual_seed(0))
        if given["scored"]:
            score(policy, *prompts, drawn.ids, drawn.mask, MICROBATCH)
        return float(drawn.mask.sum())

    return work


def rows(given: Any) -> list[Row]:
    folder = str(workload(given.out))
    asked = {"loop": ("loop", False), "batch": ("batch", False), "batch-scored": ("batch", True)}
    sides = [
        Side("engines", name, {"folder": folder, "engine": engine, "scored": scored}, threads=given.threads)
        for name, (engine, scored) in asked.items()
    ]
    loop, batch, scored = alternate(sides, given.repeats, given.out / "logs")
    return [
        speed_row("engine batch against loop", "tokens", batch, loop, TARGET),
        speed_row("engine batch with log-probabilities", "tokens", scored, loop, TARGET),
    ]
