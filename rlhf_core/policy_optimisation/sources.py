"""Sources of rollouts (samples of the policy, or fixed ones of the reference) and starting points of critics."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from rlhf_core.choices import Choices
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rlhf_core.models.generation import Generated
    from rlhf_core.models.policy import Policy
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.policy_optimisation.experience import EncodedPrompt, PhaseClock
    from rlhf_core.rollout import RolloutBatch


class RolloutSource(Protocol):
    """Gives the next rollout batch, with `logprobs` (of the sampling policy) and `reference_logprobs`."""

    def next(self, generator: torch.Generator) -> RolloutBatch:
        """Returns the next batch; what is random beyond the order of the data comes from `generator`."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Passes:
    """Indices of `n` items without end, `size` at a time; every item once before any comes again.

    Args:
        n: items.
        size: of a batch.
        seed: of their order.
    """

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


class _InPasses:
    """A source that goes through its data again and again."""

    passes: Passes

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["passes"])


class OnPolicy(_InPasses):
    """Samples responses to the next prompts from the policy as it is.

    Args:
        policy, reference: who samples, and who is the anchor.
        tokenizer: decodes responses.
        prompts: all prompts.
        sampling: how responses are drawn.
        rollout_batch: responses per batch.
        group_size: responses per prompt.
        microbatch: responses per forward pass.
        seed: of the order of the prompts.
        clock: times sampling and scoring.
        generation_batch: responses sampled at a time over all ranks, None for the whole batch.
        on_generated: sees each part of a batch as soon as it is sampled.
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
        self.generation_batch, self.on_generated = generation_batch, on_generated
        self.policy, self.reference, self.tokenizer = policy, reference, tokenizer
        self.prompts, self.sampling = prompts, sampling
        self.group_size, self.microbatch, self.clock = group_size, microbatch, clock
        self.passes = Passes(len(prompts), rollout_batch // group_size, f"prompts-{seed}")

    def next(self, generator: torch.Generator) -> RolloutBatch:
        from rlhf_core.policy_optimisation.experience import collect

        prompts = [self.prompts[i] for i in self.passes.next()]
        return collect(
            self.policy, self.reference, self.tokenizer, prompts, self.sampling, generator,
            microbatch=self.microbatch, group_size=self.group_size, clock=self.clock,
            generation_batch=self.generation_batch, on_generated=self.on_generated,
        )  # fmt: skip


class FixedSamples(_InPasses):
    """Goes through samples that the reference drew once; the sampling policy is the reference. Source: RLMEC, §4.2.

    Args:
        reference: scores the samples, once, at the start.
        samples: all of them.
        rollout_batch: responses per batch.
        microbatch: responses per forward pass.
        seed: of their order.
    """

    def __init__(
        self, reference: Policy, samples: RolloutBatch, *, rollout_batch: int, microbatch: int = 64, seed: int = 0
    ) -> None:
        from rlhf_core.policy_optimisation.experience import score

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
        from rlhf_core.policy_optimisation.experience import slice_rows

        return slice_rows(self.samples, torch.tensor(self.passes.next(), device=self.samples.groups.device))


@dataclass(frozen=True)
class RolloutParts:
    """Parts that a source of rollouts may use; see `OnPolicy`.

    Attributes:
        prompts: encodes the training prompts.
        samples: samples of the reference, None where there are none.
    """

    policy: Policy
    reference: Policy
    tokenizer: PreTrainedTokenizerBase
    prompts: Callable[[], Sequence[EncodedPrompt]]
    samples: RolloutBatch | None
    sampling: Sampling
    rollout_batch: int
    group_size: int
    microbatch: int
    seed: int
    clock: PhaseClock
    generation_batch: int | None = None
    on_generated: Callable[[Generated], None] | None = None


@dataclass(frozen=True)
class RolloutOrigin:
    """A source of rollouts as a setting names it.

    Args:
        build: gives the source.
        fixed: whether they are samples of the reference, drawn once; the policy samples them otherwise.
    """

    build: Callable[[RolloutParts], RolloutSource]
    fixed: bool


def on_policy(parts: RolloutParts) -> RolloutSource:
    """Returns samples of the policy as it is."""
    return OnPolicy(
        parts.policy, parts.reference, parts.tokenizer, parts.prompts(), parts.sampling,
        rollout_batch=parts.rollout_batch, group_size=parts.group_size, microbatch=parts.microbatch,
        seed=parts.seed, clock=parts.clock, generation_batch=parts.generation_batch, on_generated=parts.on_generated,
    )  # fmt: skip


def fixed(parts: RolloutParts) -> RolloutSource:
    """Returns samples that the reference drew once.

    Raises:
        RecipeError: there are none.
    """
    if parts.samples is None:
        raise RecipeError("the optimiser learns from fixed samples: give --samples")
    sizes = {"rollout_batch": parts.rollout_batch, "microbatch": parts.microbatch, "seed": parts.seed}
    return FixedSamples(parts.reference, parts.samples, **sizes)


SOURCES = Choices(
    "source",
    {"on_policy": RolloutOrigin(on_policy, fixed=False), "fixed": RolloutOrigin(fixed, fixed=True)},
    needs=("build", "fixed"),
)


@dataclass(frozen=True)
class CriticParts:
    """Models that a critic may start from.

    Attributes:
        sft: loads the SFT model.
        reward_model: loads the reward model that is read; None where none is.
        head: of that reward model.
        seed: of a new head.
    """

    sft: Callable[[], PreTrainedModel]
    reward_model: Callable[[], ScalarModel] | None
    head: str
    seed: int


@dataclass(frozen=True)
class CriticStart:
    """Starting point of a critic.

    Args:
        build: gives the critic; None for no critic.
        of_reward_model: whether a reward model is needed.
        reads: settings that only a critic reads.
    """

    build: Callable[[CriticParts], ScalarModel] | None
    of_reward_model: bool = False
    reads: tuple[str, ...] = ("critic_lr", "critic_warmup", "value_clip", "value_coef", "value_target")


def from_sft(parts: CriticParts) -> ScalarModel:
    """Returns the SFT model with a new value head."""
    from rlhf_core.models.reward_model import ScalarModel

    return ScalarModel.from_language_model(parts.sft(), heads=("value",), seed=parts.seed, bias=True)


def from_reward_model(parts: CriticParts) -> ScalarModel:
    """Returns the reward model, its head as the value head.

    Raises:
        RecipeError: no reward model is given.
    """
    if parts.reward_model is None:
        raise RecipeError("critic is 'reward_model', but no component reads a reward model")
    return parts.reward_model().as_critic(parts.head)


CRITICS = Choices(
    "critic",
    {
        "sft": CriticStart(from_sft),
        "reward_model": CriticStart(from_reward_model, of_reward_model=True),
        "none": CriticStart(None, reads=()),
    },
    needs=("build", "of_reward_model", "reads"),
)
