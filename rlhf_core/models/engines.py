"""Engines that sample responses, by name.

An engine is a class with `check`, called before anything is loaded, and `sample`. Which one samples is the setting
`engine` of `Sampling` and of evaluations. Given the same generator, the engines of the table draw the same random
number for each token of each response and leave the generator in the same state: they differ in rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from rlhf_core.choices import Choices
from rlhf_core.models.architecture import check_paged
from rlhf_core.models.vllm.environment import check_vllm

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlhf_core.models.generation import Generated
    from rlhf_core.models.policy import Policy
    from rlhf_core.models.sampling import Sampling


class Engine(Protocol):
    """A way to sample responses.

    Attributes:
        rescored: whether training computes the log-probabilities of responses anew, since the engine's own come from
            other kernels than the policy's forward pass.
    """

    rescored: ClassVar[bool]

    @staticmethod
    def check(architecture: Mapping[str, Any]) -> None:
        """Refuses a model that the engine cannot run.

        Args:
            architecture: fields of the model's configuration, `model_type` included; empty where they are not known.

        Raises:
            RecipeError: the reason, as the end of a message.
        """

    def sample(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
    ) -> Generated:
        """Samples a response to each prompt by the policy's present weights; see `generation.generate`."""


class Loop:
    """The reference: one token at a time for all rows, with a key-value cache of the whole batch."""

    rescored: ClassVar[bool] = False

    @staticmethod
    def check(architecture: Mapping[str, Any]) -> None:
        pass

    def sample(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
    ) -> Generated:
        from rlhf_core.models.generation import sample_in_steps

        return sample_in_steps(policy, prompt_ids, prompt_mask, sampling, generator)


class ContinuousBatching:
    """Continuous batching of transformers, with a paged key-value cache and without padding."""

    rescored: ClassVar[bool] = True

    @staticmethod
    def check(architecture: Mapping[str, Any]) -> None:
        check_paged(architecture)

    def sample(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
    ) -> Generated:
        from rlhf_core.models.continuous_batching import sample_in_batches

        return sample_in_batches(policy, prompt_ids, prompt_mask, sampling, generator)


class Vllm:
    """vLLM, in a process and an environment of its own, with the policy's present weights."""

    rescored: ClassVar[bool] = True

    @staticmethod
    def check(architecture: Mapping[str, Any]) -> None:
        check_vllm(architecture)

    def sample(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
    ) -> Generated:
        from rlhf_core.models.vllm.engine import sample_by_vllm

        return sample_by_vllm(policy, prompt_ids, prompt_mask, sampling, generator)


ENGINES: Choices[type[Engine]] = Choices(
    "engine", {"loop": Loop, "batch": ContinuousBatching, "vllm": Vllm}, needs=("rescored", "check", "sample")
)
#: Samples where no setting names another one.
DEFAULT_ENGINE = "loop"

_used: set[str] = set()
_deaths: list[str] = []


def note_use(engine: str) -> None:
    """Notes that an engine has sampled in this process, for the record of the stage."""
    _used.add(engine)


def take_used() -> list[str]:
    """Returns the engines that have sampled since this was last called."""
    found = sorted(_used)
    _used.clear()
    return found


def note_death(words: str) -> None:
    """Notes what was said of an engine that died and was started again, for the record of the stage."""
    _deaths.append(words)


def take_deaths() -> list[str]:
    """Returns what was said of engines that died since this was last called."""
    found = list(_deaths)
    _deaths.clear()
    return found
