"""Settings of sampling, and the engines that sample responses, by name.

An engine is a class with `check`, called before anything is loaded, and `sample`. Which one samples is the setting
`engine` of `Sampling` and of evaluations. Given the same generator, the engines of the table draw the same random
number for each token of each response and leave the generator in the same state: they differ in rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.models.vllm.environment import check_vllm
from rlhf_core.typed import Checked, at_least, between, in_range, one_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rlhf_core.models.generation import Generated
    from rlhf_core.models.policy import Policy


class Loop:
    """The reference: one token at a time for all rows, with a key-value cache.

    Attributes:
        rescored: whether training computes the log-probabilities of responses anew, since the engine's own come from
            other kernels than the policy's forward pass.
    """

    rescored: ClassVar[bool] = False

    @staticmethod
    def check(architecture: Mapping[str, Any]) -> None:
        """Refuses a model that the engine cannot run, with the reason as the end of a message.

        Args:
            architecture: fields of the model's configuration, `model_type` included; empty where they are not known.
        """

    def sample(
        self, policy: Policy, prompt_ids: Tensor, prompt_mask: Tensor, sampling: Sampling, generator: torch.Generator
    ) -> Generated:
        """Samples a response to each prompt by the policy's present weights; see `generate`."""
        from rlhf_core.models.generation import sample_in_steps

        return sample_in_steps(policy, prompt_ids, prompt_mask, sampling, generator)


class Vllm(Loop):
    """vLLM, in a process and an environment of its own, with the policy's present weights."""

    rescored: ClassVar[bool] = True
    check = staticmethod(check_vllm)

    def sample(self, *given: Any) -> Generated:
        from rlhf_core.models.vllm.engine import sample_by_vllm

        return sample_by_vllm(*given)


ENGINES: Choices[type[Loop]] = Choices("engine", {"loop": Loop, "vllm": Vllm}, needs=("rescored", "check", "sample"))
#: Samples where no setting names another one.
DEFAULT_ENGINE = "loop"

#: Engines that have sampled for the stage under way, for its record.
used_engines: set[str] = set()
#: Temperatures of sampling: below the smallest and above the largest one, logits are no longer told apart.
Temperature = Annotated[
    float, in_range("0 for greedy, or from 0.01 to 100", lambda value: value == 0 or 0.01 <= value <= 100)
]


@dataclass(frozen=True)
class Sampling(Checked):
    """Sampling settings for responses.

    Args:
        max_new_tokens: longest response, EOS included.
        temperature: 0 is greedy; others are from 0.01 to 100.
        top_p: nucleus mass in (0, 1], 1 keeps all.
        top_k: number of most likely tokens kept, 0 keeps all.
        engine: one of `ENGINES`, which samples.
    """

    max_new_tokens: Annotated[int, at_least(1)]
    temperature: Temperature = 1.0
    top_p: Annotated[float, between(0, 1, open_low=True)] = 1.0
    top_k: Annotated[int, at_least(0)] = 0
    engine: Annotated[str, one_of(ENGINES)] = DEFAULT_ENGINE

    def refuse_copies(self, answers: int, name: str) -> None:
        """Refuses several answers to a prompt, as the setting `name` asks for, that are drawn greedily and so equal."""
        alone = "temperature is 0" if self.temperature == 0 else "top_k is 1" if self.top_k == 1 else ""
        if answers > 1 and alone:
            raise RecipeError(
                f"{name} is {answers}, but sampling.{alone}: all answers to a prompt would be the same; sample "
                "them at a temperature above 0 and without top_k 1"
            )


def generate(
    policy: Policy,
    prompt_ids: Tensor,
    prompt_mask: Tensor,
    sampling: Sampling,
    generator: torch.Generator,
) -> Generated:
    """Samples one response per row, by the engine that the settings name.

    Args:
        policy: the model to sample from.
        prompt_ids, prompt_mask: [batch, prompt_len], left-padded.
        sampling: how, and by which engine.
        generator: CPU generator, the only source of randomness.
    """
    import torch

    used_engines.add(sampling.engine)
    with torch.no_grad():
        return ENGINES[sampling.engine]().sample(policy, prompt_ids, prompt_mask, sampling, generator)
