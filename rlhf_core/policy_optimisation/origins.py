"""Origins of rollouts and starting points of critics: tables of the builders of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from rlhf_core.models.generation import Generated
    from rlhf_core.models.policy import Policy
    from rlhf_core.models.reward_model import ScalarModel
    from rlhf_core.models.sampling import Sampling
    from rlhf_core.policy_optimisation.experience import EncodedPrompt, PhaseClock
    from rlhf_core.policy_optimisation.sources import RolloutSource
    from rlhf_core.rollout import RolloutBatch


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


class BatchSizes(Protocol):
    """Sizes of an optimiser's batches."""

    @property
    def rollout_batch(self) -> int: ...

    @property
    def group_size(self) -> int: ...

    @property
    def microbatch(self) -> int: ...


@dataclass(frozen=True)
class RolloutParts:
    """Parts that an origin of rollouts may use.

    Attributes:
        policy, reference: who samples, and who is the anchor.
        tokenizer: decodes responses.
        prompts: encodes the training prompts.
        samples: samples of the reference, None where there are none.
        sampling: how responses are drawn.
        config: sizes of batches.
        seed: of the order.
        clock: times sampling and scoring.
        generation_batch: responses sampled at a time, None for the whole batch.
        on_generated: sees each part of a batch as soon as it is sampled.
    """

    policy: Policy
    reference: Policy
    tokenizer: PreTrainedTokenizerBase
    prompts: Callable[[], Sequence[EncodedPrompt]]
    samples: RolloutBatch | None
    sampling: Sampling
    config: BatchSizes
    seed: int
    clock: PhaseClock
    generation_batch: int | None = None
    on_generated: Callable[[Generated], None] | None = None


@dataclass(frozen=True)
class RolloutOrigin:
    """Origin of rollouts.

    Args:
        build: gives the source.
        fixed: whether they are samples of the reference, drawn once; the policy samples them otherwise.
    """

    build: Callable[[RolloutParts], RolloutSource]
    fixed: bool


def on_policy(parts: RolloutParts) -> RolloutSource:
    """Samples of the policy as it is."""
    from rlhf_core.policy_optimisation.sources import OnPolicy

    config = parts.config
    return OnPolicy(
        parts.policy, parts.reference, parts.tokenizer, parts.prompts(), parts.sampling,
        rollout_batch=config.rollout_batch, group_size=config.group_size, microbatch=config.microbatch,
        seed=parts.seed, clock=parts.clock, generation_batch=parts.generation_batch, on_generated=parts.on_generated,
    )  # fmt: skip


def fixed(parts: RolloutParts) -> RolloutSource:
    """Samples that the reference drew once.

    Raises:
        RecipeError: there are none.
    """
    from rlhf_core.policy_optimisation.sources import FixedSamples

    if parts.samples is None:
        raise RecipeError("the optimiser learns from fixed samples: give --samples")
    config = parts.config
    return FixedSamples(
        parts.reference,
        parts.samples,
        rollout_batch=config.rollout_batch,
        microbatch=config.microbatch,
        seed=parts.seed,
    )


SOURCES = Choices(
    "source",
    {"on_policy": RolloutOrigin(on_policy, fixed=False), "fixed": RolloutOrigin(fixed, fixed=True)},
    needs=("build", "fixed"),
)
