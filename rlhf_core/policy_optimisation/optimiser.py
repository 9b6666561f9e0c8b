"""The policy optimisation loop over per-token rewards; `OptimiserConfig` says which algorithm it is.

Order per iteration: roll out, reward (normalise, place, clamp), KL into the reward (if placed there), advantages,
whitening, replay buffer, minibatch epochs. Differences from the textbook: 1. a loss is summed over microbatches and
divided once by what it averages over in the whole minibatch, so accumulation equals one big batch; 2. the critic's
target is built before whitening; 3. the sampling-time log-probabilities serve as pi_old; 4. models stay in evaluation
mode, so that the ratio of the first update is 1 whatever the dropout. Source: Segment, §2.3, appendix D; PAR,
Algorithms 1 to 6; RLMEC, §4.2.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.models.policy import Policy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.passes import microbatches
from rlhf_core.policy_optimisation.advantages import ADVANTAGES, EstimatorInputs, value_targets, whiten
from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.policy_optimisation.diagnostics import describe
from rlhf_core.policy_optimisation.experience import (
    Experience,
    PhaseClock,
    ReplayBuffer,
    RewardFunction,
    proxy_scores,
)
from rlhf_core.policy_optimisation.kl import KLCoefficient, kl_tokens
from rlhf_core.policy_optimisation.learner import Imitation, Learner
from rlhf_core.policy_optimisation.objectives import UNWEIGHTED, truncated_importance
from rlhf_core.policy_optimisation.sources import RolloutSource
from rlhf_core.rewards.composition import Stateful
from rlhf_core.rollout import RolloutBatch
from rlhf_core.schedule import rate_share

#: step from 1, metrics, what was rolled out; True ends the training
OnStep = Callable[[int, dict[str, float], Experience], bool | None]


class PolicyOptimiser:
    """A policy optimisation run; PPO, REINFORCE++, GRPO, RLOO, RLMEC and online DPO are settings of it.

    Args:
        policy: trained in place.
        reward: rollouts to per-token rewards.
        source: of rollouts.
        seed: of sampling, shuffling and the replay buffer.
        critic: trained in place; its head 'value' is read at the state before each token.
        auxiliary: a further loss of the policy.
        clock: times scoring and updates; give the source the same one.
    """

    def __init__(
        self,
        policy: Policy,
        reward: RewardFunction,
        source: RolloutSource,
        config: OptimiserConfig,
        seed: int,
        *,
        critic: ScalarModel | None = None,
        auxiliary: Imitation | None = None,
        clock: PhaseClock | None = None,
    ) -> None:
        if config.has_critic != (critic is not None):
            raise RecipeError(
                f"the settings say critic '{config.critic}', but {'no' if critic is None else 'a'} critic is given"
            )
        self.policy, self.critic, self.reward, self.source = policy, critic, reward, source
        self.config, self.clock = config, clock or PhaseClock()
        self.generator = torch.Generator().manual_seed(seed)
        self.learner = Learner(policy, critic, config, auxiliary)
        self.kl = KLCoefficient(config.kl_coef, config.kl_target, config.kl_horizon)
        self.replay = ReplayBuffer(config.replay)
        self.step = 0

    def train(self, on_step: OnStep) -> None:
        """Runs the iterations that are left; `on_step(step, metrics, experience)` sees each one and may end it."""
        while self.step < self.config.iterations:
            metrics, experience = self.iterate()
            if on_step(self.step, metrics, experience):
                break
        self.learner.close()

    def gathered(self) -> AbstractContextManager[None]:
        """Returns a context in which every rank has the whole policy: for rollouts, and for evaluation while
        training."""
        return self.learner.actor.gathered()

    def iterate(self) -> tuple[dict[str, float], Experience]:
        """Runs one iteration; returns its metrics, and what was rolled out in it."""
        config, step = self.config, self.step + 1
        with self.gathered():
            batch = self.source.next(self.generator)
        tokens = int(batch.responses.mask.sum())
        with self.clock.phase("score"):
            experience = self.experience(batch)
        metrics = describe(experience, with_critic=config.has_critic)
        if config.kl_target is not None:
            metrics["kl_coef"] = self.kl.value
        trained_on = self.replay.substitute(experience, self.generator)
        if trained_on is not None:
            share = rate_share(
                self.step,
                config.iterations,
                warmup=config.lr_warmup,
                schedule=config.lr_schedule,
                final_share=config.lr_final_share,
            )
            self.learner.set_rates(share)
            with self.clock.phase("update"):
                metrics |= self.update(trained_on, train_actor=step > config.critic_warmup)
            self.clock.count("update", config.epochs * int(trained_on.batch.responses.mask.sum()))
        for phase in ("generate", "score"):
            self.clock.count(phase, tokens)
        bad = {name: value for name, value in metrics.items() if value != value or abs(value) == float("inf")}
        if bad:
            raise NumericsError(f"step {step}: {bad} not finite; lower the learning rate or check the reward")
        self.kl.update(metrics["kl"], len(experience.batch))
        self.step = step
        return metrics, experience

    def experience(self, batch: RolloutBatch) -> Experience:
        """Rewards a rollout batch and estimates its advantages."""
        config, mask = self.config, batch.responses.mask
        reward = self.reward(batch)
        rewards = reward.total
        if config.kl_placement == "reward":
            assert batch.logprobs is not None
            assert batch.reference_logprobs is not None
            rewards = rewards - self.kl.value * kl_tokens(
                batch.logprobs, batch.reference_logprobs, mask, config.kl_estimator
            )
        values = self.values(batch)
        rewarded = EstimatorInputs(rewards, values, mask, batch.groups)
        advantages = ADVANTAGES[config.advantage].estimate(rewarded, config)
        returns = value_targets(rewarded, advantages, config)
        if config.whitening == "rollout":
            advantages = whiten(advantages, mask)
        return Experience(batch, reward, values, advantages, returns, proxy_scores(reward), self.importance(batch))

    def importance(self, batch: RolloutBatch) -> Tensor | None:
        """Returns the weights of the tokens' losses, None where the settings ask for none."""
        cap = self.config.importance_cap
        if cap is None:
            return None
        if batch.logprobs is None or batch.engine_logprobs is None:
            raise RecipeError(f"importance_cap is {cap:g}, but {UNWEIGHTED}")
        return truncated_importance(batch.logprobs, batch.engine_logprobs, batch.responses.mask, cap)

    @torch.no_grad()
    def values(self, batch: RolloutBatch) -> Tensor:
        """Returns [batch, response_len] float32: the critic's values, zeros without one."""
        mask = batch.responses.mask
        values = torch.zeros(mask.shape, device=mask.device)
        if self.critic is not None and self.learner.critic_stepper is not None:
            with self.learner.critic_stepper.gathered():
                for rows, inputs in microbatches(batch.inputs, self.config.microbatch, packed=self.critic.packs):
                    values[rows, : inputs[3].shape[1]] = self.critic(*inputs, head="value", shift=1)
        return distributed.merged(values)

    def update(self, experience: Experience, *, train_actor: bool = True) -> dict[str, float]:
        """Runs epochs of minibatch updates; returns losses and diagnostics averaged over them."""
        return self.learner.update(experience, self.generator, self.kl.value, train_actor=train_actor)

    def state_dict(self) -> dict[str, Any]:
        """Returns all that changes while training, as tensors and plain values; tensors are the live ones."""
        state = {name: part.state_dict() for name, part in self._parts().items()}
        return state | {"step": self.step, "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from a `state_dict`, bitwise, given the same settings, data and frozen models."""
        self.step = state["step"]
        self.generator.set_state(state["generator"])
        for name, part in self._parts().items():
            part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        """Returns what changes while training and keeps its own state."""
        parts = {"learner": self.learner, "kl": self.kl, "replay": self.replay, "source": self.source.passes}
        return parts | ({"reward": self.reward} if isinstance(self.reward, Stateful) else {})
