"""PPO that goes on from a saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rlhf_core.errors import NumericsError
from rlhf_core.policy_optimisation.experience import EncodedPrompt
from rlhf_core.policy_optimisation.ppo import PPO, Experience
from rlhf_core.training_state import State, load_trainable_state, trainable_state


class ResumablePPO(PPO):
    """PPO whose state between two iterations can be saved and put back.

    Attributes:
        step: iterations done.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.step = 0

    def state_dict(self) -> State:
        """Policy, critic, both optimisers, the generator of sampling and shuffling, and the step."""
        return {
            "step": self.step,
            "policy": trainable_state(self.policy.model),
            "critic": trainable_state(self.critic),
            "actor_optimiser": self.actor_optimiser.state_dict(),
            "critic_optimiser": self.critic_optimiser.state_dict(),
            "generator": self.generator.get_state(),
        }

    def load_state_dict(self, state: State) -> None:
        """Puts a `state_dict` back; `train` then runs the iterations that are left."""
        self.step = int(state["step"])
        load_trainable_state(self.policy.model, state["policy"])
        load_trainable_state(self.critic, state["critic"])
        self.actor_optimiser.load_state_dict(state["actor_optimiser"])
        self.critic_optimiser.load_state_dict(state["critic_optimiser"])
        self.generator.set_state(state["generator"])

    def train(
        self,
        prompts: Iterator[list[EncodedPrompt]],
        on_step: Callable[[int, dict[str, float], Experience], None],
    ) -> None:
        """As `PPO.train`, from the iteration after `step` on."""
        for step in range(self.step + 1, self.config.iterations + 1):
            experience = self.experience(next(prompts))
            metrics = self.describe(experience)
            metrics |= self.update(experience, train_actor=step > self.config.critic_warmup)
            bad = {name: value for name, value in metrics.items() if value != value or abs(value) == float("inf")}
            if bad:
                raise NumericsError(f"step {step}: {bad} not finite; lower the learning rate or check the reward")
            self.step = step
            on_step(step, metrics, experience)
