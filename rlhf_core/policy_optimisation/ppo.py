"""PPO with a critic over per-token rewards.

Order per iteration: sample, reward (normalise, place, clamp), subtract beta * (log pi - log pi_ref) on every
response token, GAE, whiten advantages over the whole rollout batch, minibatch epochs of clipped surrogate and
clipped value loss. Differences from the textbook: 1. losses are means over real tokens of a minibatch, so that
accumulation over microbatches equals one big batch; 2. the value target is A + V before whitening; 3. the
sampling-time log-probabilities serve as pi_old. Source: Segment, §2.3, appendix D.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.models.generation import Sampling
from rlhf_core.models.policy import DecoderPolicy
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.policy_optimisation.advantages import gae, masked_mean, whiten
from rlhf_core.policy_optimisation.experience import (
    EncodedPrompt,
    RewardFunction,
    collect,
    microbatches,
    trimmed,
)
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.objectives import clipped_surrogate, clipped_value_loss
from rlhf_core.rewards.composition import RewardOutput
from rlhf_core.rollout import RolloutBatch


@dataclass(frozen=True)
class PPOConfig:
    """Settings of a PPO run.

    Args:
        iterations: policy iterations (rollout batches).
        rollout_batch: responses per iteration.
        minibatch: responses per optimiser step.
        microbatch: responses per forward pass.
        epochs: passes over each rollout batch.
        actor_lr, critic_lr: Adam learning rates.
        critic_warmup: iterations in which only the critic learns.
        gamma, lam: discount and GAE's lambda.
        clip: epsilon of the policy ratio.
        value_clip: clip of the value change, None for none.
        kl_coef: beta of the per-token KL penalty in the reward.
        max_grad_norm: gradient clipping norm, actor and critic each.
        adam_betas: Adam's betas.
    """

    iterations: int
    rollout_batch: int
    minibatch: int
    microbatch: int
    epochs: int
    actor_lr: float
    critic_lr: float
    critic_warmup: int = 0
    gamma: float = 1.0
    lam: float = 0.95
    clip: float = 0.2
    value_clip: float | None = 0.25
    kl_coef: float = 0.01
    max_grad_norm: float = 1.0
    adam_betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        for name in ("iterations", "rollout_batch", "minibatch", "microbatch", "epochs"):
            if getattr(self, name) < 1:
                raise RecipeError(f"PPO setting '{name}' is {getattr(self, name)}, it must be at least 1")
        if self.rollout_batch % self.minibatch:
            raise RecipeError(
                f"rollout_batch {self.rollout_batch} is not a multiple of minibatch {self.minibatch}; "
                "every response must be trained on equally often"
            )
        for name in ("actor_lr", "critic_lr"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise RecipeError(f"PPO setting '{name}' is {value}; it must be a finite number above 0")


@dataclass(frozen=True)
class Experience:
    """A scored rollout batch with everything an update needs; tensors are [batch, response_len] float32."""

    batch: RolloutBatch
    reward: RewardOutput
    values: Tensor
    advantages: Tensor
    returns: Tensor


class PPO:
    """A PPO run.

    Args:
        policy: trained in place.
        reference: frozen.
        critic: trained in place; its head 'value' is read at the state before each token.
        reward: rollouts to per-token rewards.
        tokenizer: decodes responses.
        config: settings.
        sampling: how responses are drawn.
        seed: of sampling and shuffling.
    """

    def __init__(
        self,
        policy: DecoderPolicy,
        reference: DecoderPolicy,
        critic: ScalarModel,
        reward: RewardFunction,
        tokenizer: PreTrainedTokenizerBase,
        config: PPOConfig,
        sampling: Sampling,
        seed: int,
    ) -> None:
        self.policy, self.reference, self.critic = policy, reference, critic
        self.reward, self.tokenizer = reward, tokenizer
        self.config, self.sampling = config, sampling
        self.generator = torch.Generator().manual_seed(seed)
        self.actor_optimiser = torch.optim.Adam(
            policy.model.parameters(), lr=config.actor_lr, betas=config.adam_betas, fused=True
        )
        self.critic_optimiser = torch.optim.Adam(
            critic.parameters(), lr=config.critic_lr, betas=config.adam_betas, fused=True
        )
        reference.model.requires_grad_(False)

    def train(
        self,
        prompts: Iterator[list[EncodedPrompt]],
        on_step: Callable[[int, dict[str, float], Experience], None],
    ) -> None:
        """Runs all iterations; `on_step(step, metrics, experience)` sees each one after its update.

        Args:
            prompts: batches of `rollout_batch` prompts.
            on_step: step counts from 1.
        """
        for step in range(1, self.config.iterations + 1):
            experience = self.experience(next(prompts))
            metrics = self.describe(experience)
            metrics |= self.update(experience, train_actor=step > self.config.critic_warmup)
            bad = {name: value for name, value in metrics.items() if value != value or abs(value) == float("inf")}
            if bad:
                raise NumericsError(f"step {step}: {bad} not finite; lower the learning rate or check the reward")
            on_step(step, metrics, experience)

    def experience(self, prompts: list[EncodedPrompt]) -> Experience:
        """Rolls out, rewards and estimates advantages."""
        config = self.config
        batch = collect(
            self.policy, self.reference, self.tokenizer, prompts, self.sampling, self.generator,
            microbatch=config.microbatch,
        )  # fmt: skip
        mask = batch.responses.mask
        assert batch.logprobs is not None
        assert batch.reference_logprobs is not None
        reward = self.reward(batch)
        kl = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k1")
        values = torch.zeros_like(reward.total)
        with torch.no_grad():
            for rows in microbatches(batch.prompt_mask, mask, config.microbatch):
                values[rows, : trimmed(batch.prompt_mask[rows], mask[rows])[1]] = self._values(batch, rows)
        raw = gae(reward.total - config.kl_coef * kl, values, mask, config.gamma, config.lam)
        return Experience(batch, reward, values, whiten(raw, mask), (raw + values) * mask)

    def _rows(self, batch: RolloutBatch, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        prompt_len, response_len = trimmed(batch.prompt_mask[rows], batch.responses.mask[rows])
        return (
            batch.prompt_ids[rows, -prompt_len:],
            batch.prompt_mask[rows, -prompt_len:],
            batch.responses.ids[rows, :response_len],
            batch.responses.mask[rows, :response_len],
        )

    def _values(self, batch: RolloutBatch, rows: Tensor) -> Tensor:
        values: Tensor = self.critic(*self._rows(batch, rows), head="value", shift=1)
        return values

    def update(self, experience: Experience, *, train_actor: bool = True) -> dict[str, float]:
        """Epochs of minibatch updates; returns losses and diagnostics averaged over them."""
        config, mask = self.config, experience.batch.responses.mask
        sums: dict[str, float] = {}
        steps = 0
        for _ in range(config.epochs):
            order = torch.randperm(len(experience.batch), generator=self.generator).to(mask.device)
            for chosen in order.split(config.minibatch):
                chosen = chosen[torch.argsort(mask[chosen].sum(dim=1), stable=True)]
                parts = self._minibatch(experience, chosen, train_actor)
                for name, value in parts.items():
                    sums[name] = sums.get(name, 0.0) + value
                steps += 1
        return {name: value / steps for name, value in sums.items()}

    def _minibatch(self, experience: Experience, chosen: Tensor, train_actor: bool) -> dict[str, float]:
        """One optimiser step on the rows `chosen`, accumulated over microbatches, token-weighted."""
        config, batch = self.config, experience.batch
        tokens = batch.responses.mask[chosen].sum().clamp(min=1)
        self.actor_optimiser.zero_grad(set_to_none=True)
        self.critic_optimiser.zero_grad(set_to_none=True)
        totals = torch.zeros(5)
        assert batch.logprobs is not None
        for rows in chosen.split(config.microbatch):
            inputs = self._rows(batch, rows)
            mask = inputs[3]
            width = mask.shape[1]
            value_loss, value_clipped = clipped_value_loss(
                self._values(batch, rows), experience.values[rows, :width], experience.returns[rows, :width],
                mask, config.value_clip,
            )  # fmt: skip
            (value_loss / tokens).backward()
            parts = [torch.zeros((), device=mask.device)] * 3
            if train_actor:
                old = batch.logprobs[rows, :width]
                logprobs = self.policy.statistics(*inputs, with_entropy=False).logprobs
                policy_loss, clipped = clipped_surrogate(
                    logprobs, old, experience.advantages[rows, :width], mask, config.clip
                )
                (policy_loss / tokens).backward()
                moved = kl_tokens(old, logprobs.detach(), mask, "k1").sum()
                parts = [policy_loss.detach(), clipped, moved]
            totals += torch.stack([*parts, value_loss.detach(), value_clipped]).float().cpu()
        metrics = dict(
            zip(
                ("policy_loss", "clip_fraction", "update_kl", "value_loss", "value_clip_fraction"),
                (totals / tokens.cpu()).tolist(),
                strict=True,
            )
        )
        metrics["critic_grad_norm"] = self._step(self.critic_optimiser, self.critic)
        if train_actor:
            metrics["grad_norm"] = self._step(self.actor_optimiser, self.policy.model)
        return metrics

    def _step(self, optimiser: torch.optim.Optimizer, model: torch.nn.Module) -> float:
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), self.config.max_grad_norm))
        if norm != norm or norm == float("inf"):
            raise NumericsError(f"gradient norm is {norm}; lower the learning rate or check the reward")
        optimiser.step()
        return norm

    def describe(self, experience: Experience) -> dict[str, float]:
        """Diagnostics of a rollout batch, before the update."""
        batch, reward = experience.batch, experience.reward
        mask, lengths = batch.responses.mask, batch.responses.lengths.float()
        assert batch.logprobs is not None
        assert batch.reference_logprobs is not None
        k1 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k1")
        k3 = kl_tokens(batch.logprobs, batch.reference_logprobs, mask, "k3")
        error = masked_mean((experience.returns - experience.values) ** 2, mask)
        spread = masked_mean((experience.returns - masked_mean(experience.returns, mask)) ** 2, mask)
        metrics: dict[str, Any] = {
            "reward": reward.sequence_totals().mean(),
            "kl": k1.sum(dim=1).mean(),
            "kl_k3": k3.sum(dim=1).mean(),
            "entropy": -masked_mean(batch.logprobs, mask),
            "response_length": lengths.mean(),
            "truncated": 1.0 - batch.responses.ended.float().mean(),
            "value_mean": masked_mean(experience.values, mask),
            "return_mean": masked_mean(experience.returns, mask),
            "explained_variance": 1.0 - error / spread.clamp(min=1e-8),
        }
        for name, signal in reward.raw.items():
            raw = signal.masked_mean() if hasattr(signal, "masked_mean") else signal.values
            metrics[f"proxy/{name}"] = raw.float().mean()
        for name, part in reward.breakdown.items():
            metrics[f"reward/{name}"] = part.sum(dim=1).mean()
        return {name: float(value) for name, value in metrics.items()}
