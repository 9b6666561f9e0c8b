"""Updates: minibatch epochs of policy, critic and auxiliary losses over an experience."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import DataError, NumericsError
from rlhf_core.models.policy import Policy, weighted_nll
from rlhf_core.models.reward_model import ScalarModel
from rlhf_core.passes import RowTokens
from rlhf_core.policy_optimisation.advantages import whiten
from rlhf_core.policy_optimisation.config import OptimiserConfig
from rlhf_core.policy_optimisation.experience import Experience
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.objectives import OBJECTIVES, ObjectiveInputs, summed_losses, value_loss
from rlhf_core.policy_optimisation.sources import Passes
from rlhf_core.rollout import trimmed
from rlhf_core.stepper import Stepper, stepper_of
from rlhf_core.training_state import load_trainable_state, trainable_state

#: Mean and largest absolute change of a token's log-probability since its rollout.
GAPS = ("logprob_gap", "logprob_gap_max")


class Imitation:
    """Weighted negative log-likelihood of given responses, divided by the number of weighted tokens.

    Args:
        sequences: prompts and the responses to imitate.
        weights: one number per response token; tokens of weight 0 do not count.
        batch, microbatch: sequences per optimiser step, and of the longest per forward pass.
        coefficient: factor on the loss.
        seed: of their order.

    Source: RLMEC, Eq. 8 and 9.
    """

    name = "imitation_loss"

    def __init__(
        self,
        sequences: Sequence[EncodedSequence],
        weights: Sequence[Sequence[float]],
        *,
        batch: int,
        microbatch: int,
        coefficient: float = 1.0,
        seed: int = 0,
    ) -> None:
        for i, (sequence, row) in enumerate(zip(sequences, weights, strict=True)):
            if len(sequence.response) != len(row):
                raise DataError(f"{len(row)} weights for {len(sequence.response)} response tokens", row=i + 1)
        self.sequences, self.weights = sequences, weights
        self.tokens = RowTokens.of_sequences(sequences, packed=False)
        self.microbatch, self.coefficient = microbatch, coefficient
        self.passes = Passes(len(sequences), batch, f"imitation-{seed}")

    def parts(self, policy: Policy) -> Iterator[Tensor]:
        """Yields the loss of the next batch as scalars that sum to it, over ranks too, one per forward pass."""
        rows = self.passes.next()
        counted = max(1, sum(weight != 0 for i in rows for weight in self.weights[i]))
        for chosen, counts in self.tokens.shares([[i] for i in rows], self.microbatch):
            sequences, weights = [self.sequences[i] for i in chosen], [self.weights[i] for i in chosen]
            yield (self.coefficient if counts else 0.0) * weighted_nll(policy, sequences, weights) / counted

    def state_dict(self) -> dict[str, Any]:
        return {"passes": self.passes.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.passes.load_state_dict(state["passes"])


class Learner:
    """Policy and critic with their Adam optimisers.

    Args:
        policy, critic: trained in place; what does not require a gradient stays as it is.
        auxiliary: a further loss of the policy.
    """

    def __init__(
        self,
        policy: Policy,
        critic: ScalarModel | None,
        config: OptimiserConfig,
        auxiliary: Imitation | None = None,
    ) -> None:
        self.policy, self.critic, self.config, self.auxiliary = policy, critic, config, auxiliary
        self.objective = OBJECTIVES[config.objective]
        self.actor = self._stepper(policy.model, config.actor_lr)
        self.critic_stepper: Stepper | None = None
        if critic is not None and config.critic_lr is not None:
            self.critic_stepper = self._stepper(critic, config.critic_lr)

    def _stepper(self, model: torch.nn.Module, rate: float) -> Stepper:
        config = self.config
        return stepper_of(model, "adam", rate=rate, betas=config.adam_betas, max_grad_norm=config.max_grad_norm)

    @property
    def _steppers(self) -> list[Stepper]:
        return [stepper for stepper in (self.actor, self.critic_stepper) if stepper is not None]

    def close(self) -> None:
        """Ends training: policy and critic are whole on every rank."""
        for stepper in self._steppers:
            stepper.close()

    def set_rates(self, share: float) -> None:
        """Sets the learning rates to a share of their peaks."""
        self.actor.set_rate(self.config.actor_lr * share)
        if self.critic_stepper is not None:
            self.critic_stepper.set_rate((self.config.critic_lr or 0.0) * share)

    def update(
        self, experience: Experience, generator: torch.Generator, kl_coef: float, *, train_actor: bool = True
    ) -> dict[str, float]:
        """Runs epochs of minibatch updates; returns losses and diagnostics averaged over them.

        The gaps between log-probabilities at rollout and now are the first minibatch's, before anything is learned
        from the batch: what is not rounding there is off-policy data, as from a replay buffer, or an error. Where
        online DPO skips pairs, `skipped_pairs` counts them; a batch of which none is left has no other metrics.

        Args:
            experience: what is learned from.
            generator: shuffles.
            kl_coef: beta of a penalty in the loss.
            train_actor: False trains the critic only.
        """
        sums: dict[str, float] = {}
        first: dict[str, float] = {}
        steps = 0
        units = self.units(experience)
        counts: dict[str, float] = {}
        if self.config.dpo_min_margin:
            counts["skipped_pairs"] = len(experience.batch) / 2 - len(units)
        if not len(units):
            return counts
        for _ in range(self.config.epochs):
            for chosen in self._minibatches(units, generator):
                found = self.minibatch(experience, chosen, kl_coef, train_actor=train_actor)
                gaps = {name: found.pop(name) for name in GAPS if name in found}
                first = first or gaps
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + value
                steps += 1
        return {name: value / steps for name, value in sums.items()} | first | counts

    def units(self, experience: Experience) -> Tensor:
        """Returns [units, k] int64 rows that stay together in a minibatch, as the objective has them."""
        return self.objective.units(experience.scores, experience.batch.groups, self.config)

    def _minibatches(self, units: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        """Yields the shuffled units [minibatch / k, k]; the last may hold fewer."""
        order = torch.randperm(len(units), generator=generator).to(units.device)
        for part in order.split(self.config.minibatch // units.shape[1]):
            yield units[part]

    def minibatch(
        self, experience: Experience, units: Tensor, kl_coef: float, *, train_actor: bool = True
    ) -> dict[str, float]:
        """Takes one optimiser step on the rows of `units` [n, k], accumulated over microbatches; returns metrics."""
        config, mask = self.config, experience.batch.responses.mask
        rows = units.flatten()
        tokens = mask[rows].sum().clamp(min=1)
        advantages = experience.advantages
        divisor = self.objective.divisor(advantages[rows], mask[rows], len(units), tokens, config)
        if config.whitening == "minibatch":
            advantages = advantages.index_copy(0, rows, whiten(advantages[rows], mask[rows]))
        for stepper in self._steppers:
            stepper.zero_grad()
        sums: dict[str, Tensor] = {}
        packed = self.policy.packs and (self.critic is None or self.critic.packs)
        row_tokens = RowTokens.of_batch(experience.batch.inputs, packed=packed)
        for part, counts in row_tokens.shares(row_tokens.sort(units.tolist()), config.microbatch):
            chosen = torch.tensor(part, device=units.device)
            found: dict[str, Tensor] = {}
            if train_actor:
                found = self._policy_backward(experience, advantages, chosen, kl_coef, divisor, counts)
            if self.critic is not None:
                found |= self._critic_backward(experience, chosen, tokens, counts)
            for name, value in found.items():
                before = sums.get(name, torch.zeros((), device=mask.device))
                counted = value if counts else 0.0 * value
                sums[name] = torch.maximum(before, counted) if name == "logprob_gap_max" else before + counted
        largest_gap = sums.pop("logprob_gap_max", None)
        sums = distributed.summed(sums)
        if not train_actor:
            sums = {name: torch.zeros(()) for name in ("policy_loss", "clip_fraction", "update_kl")} | sums
        of_policy = ("policy_loss", "kl_loss", *self.objective.measures)
        metrics = {name: float(value / (divisor if name in of_policy else tokens)) for name, value in sums.items()}
        if largest_gap is not None:
            metrics["logprob_gap_max"] = max(distributed.gathered(float(largest_gap)))
        if train_actor and self.auxiliary is not None:
            metrics[self.auxiliary.name] = self._auxiliary_backward(self.auxiliary)
        if self.critic_stepper is not None:
            metrics["critic_grad_norm"] = self.critic_stepper.step(_check_norm)
        if train_actor:
            metrics["grad_norm"] = self.actor.step(_check_norm)
        return metrics

    def _policy_backward(
        self, experience: Experience, advantages: Tensor, rows: Tensor, kl_coef: float, divisor: Tensor, counts: bool
    ) -> dict[str, Tensor]:
        """Adds the gradient of some rows, 0 if they do not count; returns sums for the metrics."""
        batch, config = experience.batch, self.config
        inputs = trimmed(rows, *batch.inputs)
        mask = inputs[3]
        width = mask.shape[1]
        assert batch.logprobs is not None
        assert batch.reference_logprobs is not None
        old, reference = batch.logprobs[rows, :width], batch.reference_logprobs[rows, :width]
        logprobs = self.actor.forward(lambda: self.policy.statistics(*inputs, with_entropy=False).logprobs)
        importance = None if experience.importance is None else experience.importance[rows, :width]
        seen = ObjectiveInputs(logprobs, old, reference, advantages[rows, :width], mask, importance)
        terms = self.objective.loss(seen, config)
        loss, clipped = terms.total, terms.clipped
        sums = {"policy_loss": loss.detach(), **terms.measures}
        if config.kl_placement == "loss":
            tokens = kl_tokens(logprobs, reference, mask, config.kl_estimator)
            penalty = summed_losses(tokens, mask, config.loss_average)
            sums["kl_loss"] = penalty.detach()
            loss = loss + kl_coef * penalty
        self.actor.backward((loss if counts else 0.0 * loss) / divisor)
        moved = kl_tokens(old, logprobs.detach(), mask, "k1")
        gaps = {"logprob_gap": moved.abs().sum(), "logprob_gap_max": moved.abs().max()}
        return sums | gaps | {"clip_fraction": clipped.sum(), "update_kl": moved.sum()}

    def _critic_backward(self, experience: Experience, rows: Tensor, tokens: Tensor, counts: bool) -> dict[str, Tensor]:
        critic, stepper = self.critic, self.critic_stepper
        assert critic is not None
        assert stepper is not None
        inputs = trimmed(rows, *experience.batch.inputs)
        mask = inputs[3]
        width = mask.shape[1]
        values: Tensor = stepper.forward(lambda: critic(*inputs, head="value", shift=1))
        terms = value_loss(
            values, experience.values[rows, :width], experience.returns[rows, :width], mask,
            self.config.value_clip, self.config.value_coef,
        )  # fmt: skip
        loss = terms.losses.sum()
        stepper.backward((loss if counts else 0.0 * loss) / tokens)
        return {"value_loss": loss.detach(), "value_clip_fraction": terms.clipped.sum()}

    def _auxiliary_backward(self, auxiliary: Imitation) -> float:
        total = 0.0
        parts = auxiliary.parts(self.policy)
        while (part := self.actor.forward(lambda: next(parts, None))) is not None:
            self.actor.backward(part)
            total += float(part.detach())
        return distributed.summed_numbers({auxiliary.name: total})[auxiliary.name]

    def _trained(self) -> list[tuple[str, str, Stepper, torch.nn.Module]]:
        """Returns the names of weights and moments in a state, the stepper and the model of policy and critic."""
        found: list[tuple[str, str, Stepper, torch.nn.Module]]
        found = [("policy", "actor_adam", self.actor, self.policy.model)]
        if self.critic is not None and self.critic_stepper is not None:
            found.append(("critic", "critic_adam", self.critic_stepper, self.critic))
        return found

    def state_dict(self) -> dict[str, Any]:
        """Returns the trainable weights, Adam's moments, and the auxiliary loss's place in its data."""
        state: dict[str, Any] = {}
        for weights, moments, stepper, model in self._trained():
            state[weights] = stepper.read(partial(trainable_state, model))
            state[moments] = stepper.optimiser_state()
        return state if self.auxiliary is None else state | {"auxiliary": self.auxiliary.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for weights, moments, stepper, model in self._trained():
            stepper.write(partial(load_trainable_state, model, state[weights]))
            stepper.load_optimiser_state(state[moments])
        if self.auxiliary is not None:
            self.auxiliary.load_state_dict(state["auxiliary"])


def _check_norm(norm: float) -> None:
    if norm != norm or norm == float("inf"):
        raise NumericsError(f"gradient norm is {norm}; lower the learning rate or check the reward")
