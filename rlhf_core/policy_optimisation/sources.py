"""Sources of rollouts: samples of the policy, or fixed ones of the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from rlhf_core.errors import DataError
from rlhf_core.models.generation import Generated
from rlhf_core.models.policy import Policy
from rlhf_core.models.sampling import Sampling
from rlhf_core.policy_optimisation.experience import EncodedPrompt, PhaseClock, collect, score, slice_rows
from rlhf_core.rollout import RolloutBatch


class Passes:
    """Indices of `n` items in random order without end, `size` at a time; each once before any comes again."""

    def __init__(self, n: int, size: int, seed: str) -> None:
        if n < 1:
            raise DataError("there is nothing to draw from", remedy="Check that the data set is not empty")
        self.n, self.size = n, size
        self.rng = random.Random(seed)
        self.pending: list[int] = []

    def next(self) -> list[int]:
        while len(self.pending) < self.size:
            self.pending += self.rng.sample(range(self.n), self.n)
        taken, self.pending = self.pending[: self.size], self.pending[self.size :]
        return taken

    def state_dict(self) -> dict[str, Any]:
        version, numbers, gauss = self.rng.getstate()
        return {"pending": list(self.pending), "rng": [version, list(numbers), gauss]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))
        self.pending = list(state["pending"])


class OnPolicy:
    """Samples responses to the next prompts from the policy as it is.

    What is random beyond the order of the prompts comes from the generator that `next` is given.

    Args:
        policy, reference, tokenizer, prompts, sampling, clock, generation_batch, on_generated: see `collect`.
        rollout_batch, group_size, microbatch: responses per batch, per prompt, and of the longest per forward pass.
        seed: of the order of the prompts.
    """

    def __init__(
        self,
        policy: Policy,
        reference: Policy,
        tokenizer: PreTrainedTokenizerBase,
        prompts: Sequence[EncodedPrompt],
        sampling: Sampling,
        *,
        rollout_batch: int,
        group_size: int = 1,
        microbatch: int = 64,
        seed: int = 0,
        clock: PhaseClock | None = None,
        generation_batch: int | None = None,
        on_generated: Callable[[Generated], None] | None = None,
    ) -> None:
        self.models, self.prompts, self.sampling = (policy, reference, tokenizer), prompts, sampling
        self.options: dict[str, Any] = {
            "microbatch": microbatch, "group_size": group_size, "clock": clock,
            "generation_batch": generation_batch, "on_generated": on_generated,
        }  # fmt: skip
        self.passes = Passes(len(prompts), rollout_batch // group_size, f"prompts-{seed}")

    def next(self, generator: torch.Generator) -> RolloutBatch:
        prompts = [self.prompts[i] for i in self.passes.next()]
        return collect(*self.models, prompts, self.sampling, generator, **self.options)


class FixedSamples:
    """Goes through samples that the reference drew once; the sampling policy is the reference. Source: RLMEC, §4.2.

    Args:
        reference: scores the samples, once, at the start.
        rollout_batch, microbatch: responses per batch, and of the longest per forward pass.
        seed: of their order.
    """

    def __init__(
        self, reference: Policy, samples: RolloutBatch, *, rollout_batch: int, microbatch: int = 64, seed: int = 0
    ) -> None:
        responses = samples.responses
        logprobs, entropies = score(
            reference, samples.prompt_ids, samples.prompt_mask, responses.ids, responses.mask, microbatch
        )
        self.samples = replace(
            samples,
            responses=replace(responses, entropies=entropies),
            logprobs=logprobs,
            reference_logprobs=logprobs,
            entropies=entropies,
        )
        self.passes = Passes(len(samples), rollout_batch, f"samples-{seed}")

    def next(self, generator: torch.Generator) -> RolloutBatch:
        return slice_rows(self.samples, torch.tensor(self.passes.next(), device=self.samples.groups.device))


RolloutSource = OnPolicy | FixedSamples
