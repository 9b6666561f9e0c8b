"""Policy and value losses, one number per token (or pair) and 0 on padding; the caller sums and divides.

Tensors are [batch, response_len] float32, masks bool, unless it says otherwise. `clip` is the epsilon of the interval
[1 - eps, 1 + eps] of a ratio of probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.lazy import torch
from rlhf_core.policy_optimisation.advantages import Settings, on_real

if TYPE_CHECKING:
    from torch import Tensor


#: Reason why an importance weight is refused, as the end of a message.
UNWEIGHTED = (
    "the engine's log-probabilities are the policy's own, so that every weight is 1; leave it out, or sample by "
    "another engine (sampling.engine)"
)


@dataclass(frozen=True)
class TokenLoss:
    """A loss before it is averaged, and a mask of where a clip binds."""

    losses: Tensor
    clipped: Tensor


def importance_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """Returns pi / pi_old, 1 on padding."""
    return torch.where(mask, logprobs - old_logprobs, 0.0).exp()


def truncated_importance(logprobs: Tensor, engine_logprobs: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Returns min(pi / mu, cap) of each token, detached, 1 on padding.

    Tokens are drawn from mu, the policy as an engine's kernels compute it, and learned from as if drawn from pi, the
    policy as the trainer computes it at the same weights. The weight corrects the expected gradient up to the cap.
    Source: Ionides 2008 (truncated importance sampling); Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training", for the mismatch of engine and trainer.
    """
    ratio = importance_ratio(logprobs, engine_logprobs, mask).clamp(max=cap)
    return torch.where(mask, ratio, 1.0).detach()


def clipped_surrogate(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, clip: float
) -> TokenLoss:
    """Returns PPO's clipped objective, -min(ratio*A, clip(ratio)*A). Source: Schulman et al. 2017, Eq. 7."""
    logprobs, old_logprobs, advantages = on_real(mask, logprobs, old_logprobs, advantages)
    # a ratio beyond float32 is infinite, which an advantage of 0 would make NaN
    ratio = importance_ratio(logprobs, old_logprobs, mask & (advantages != 0))
    plain, clipped = -ratio * advantages, -ratio.clamp(1 - clip, 1 + clip) * advantages
    return TokenLoss(torch.maximum(plain, clipped), (clipped > plain) & mask)


def policy_gradient(logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
    """Returns -A * log pi: REINFORCE, and A2C where the advantages are a critic's.

    Source: Williams 1992; Mnih et al. 2016.
    """
    logprobs, advantages = on_real(mask, logprobs, advantages)
    return TokenLoss(-advantages.detach() * logprobs, torch.zeros_like(mask))


def rlmec_objective(
    logprobs: Tensor, reference_logprobs: Tensor, rewards: Tensor, mask: Tensor, clip: float
) -> TokenLoss:
    """Returns -c * log pi with the detached coefficient c = min(r*R, clip(r)*R), r = pi / pi_ref.

    Source: RLMEC, Eq. 5 to 7; the caller divides by `nonzero_rewards`.
    """
    logprobs, reference_logprobs, rewards = on_real(mask, logprobs, reference_logprobs, rewards)
    with torch.no_grad():
        ratio = importance_ratio(logprobs, reference_logprobs, mask & (rewards != 0))
        plain, clipped = ratio * rewards, ratio.clamp(1 - clip, 1 + clip) * rewards
        coefficient = torch.minimum(plain, clipped)
    return TokenLoss(-coefficient * logprobs, (clipped < plain) & mask)


def nonzero_rewards(rewards: Tensor, mask: Tensor) -> Tensor:
    """Returns the scalar int64, at least 1: real tokens with a reward other than 0."""
    return ((rewards != 0) & mask).sum().clamp(min=1)


def preference_loss(logratios: Tensor, beta: float) -> tuple[Tensor, Tensor]:
    """Returns DPO's loss of pairs of responses, the better one first.

    Args:
        logratios: [pairs, 2], log pi - log pi_ref summed over each response.
        beta: temperature.

    Returns:
        (-log sigmoid(beta * difference) [pairs], implicit reward margin [pairs], detached).
        Source: Rafailov et al. 2023, Eq. 7; PAR, Algorithm 6; the comparison of Segment, Table 3.
    """
    margin = beta * (logratios[:, 0] - logratios[:, 1])
    return -torch.nn.functional.logsigmoid(margin), margin.detach()


def ordered_pairs(scores: Tensor, groups: Tensor, min_margin: float = 0.0) -> Tensor:
    """Returns [pairs, 2] int64: rows (better, worse) of every group of two; equal scores keep the lower row first.

    Args:
        scores: [batch] float32, one per response.
        groups: [batch] int64, each value exactly twice.
        min_margin: groups whose scores differ by less are left out.
    """
    order = torch.argsort(groups, stable=True).view(-1, 2)
    swap = scores[order[:, 1]] > scores[order[:, 0]]
    pairs = torch.where(swap[:, None], order.flip(1), order)
    return pairs[~(scores[pairs[:, 0]] - scores[pairs[:, 1]] < min_margin)]


def value_loss(
    values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None, coefficient: float = 0.5
) -> TokenLoss:
    """Returns coefficient * max((V - R)^2, (clip(V, V_old ± clip) - R)^2); a clip of None leaves values unclipped.

    The coefficient is 1/2 in Segment (appendix D), 1 in PAR (Algorithm 5).
    """
    values, old_values, returns = on_real(mask, values, old_values, returns)
    plain = (values - returns) ** 2
    if clip is None:
        return TokenLoss(coefficient * plain, torch.zeros_like(mask))
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    clipped = (bounded - returns) ** 2
    return TokenLoss(coefficient * torch.maximum(plain, clipped), (clipped > plain) & mask)


#: Averages of the tokens' losses of a minibatch: over tokens, or over tokens of a response and then over responses.
LOSS_AVERAGES = ("tokens", "responses")


def summed_losses(losses: Tensor, mask: Tensor, average: str) -> Tensor:
    """Returns the sum over tokens, or over responses of the mean over each one's tokens (0 for an empty one)."""
    return (losses / mask.sum(dim=1, keepdim=True).clamp(min=1)).sum() if average == "responses" else losses.sum()


@dataclass(frozen=True)
class ObjectiveInputs:
    """Inputs of an objective for some responses.

    Attributes:
        logprobs, old, reference: under the policy as it is, with a gradient; the sampling policy; and the reference.
        advantages, mask: of the tokens.
        importance: weights of the tokens' losses, None for 1.
    """

    logprobs: Tensor
    old: Tensor
    reference: Tensor
    advantages: Tensor
    mask: Tensor
    importance: Tensor | None = None


@dataclass(frozen=True)
class Loss:
    """A summed loss.

    Attributes:
        total: scalar, before it is divided.
        clipped: mask of where a clip binds.
        measures: further sums, divided as the loss is.
    """

    total: Tensor
    clipped: Tensor
    measures: Mapping[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class TokenObjective:
    """An objective with a loss for every token, summed as `loss_average` says.

    Args:
        token_loss: (responses, settings) -> `TokenLoss`.
        reads: settings that only some objectives read.
        check: raises RecipeError where other settings contradict it.
        divide_by: (advantages, mask) of a minibatch -> scalar, in the place of what `loss_average` divides by.
    """

    token_loss: Callable[[ObjectiveInputs, Settings], TokenLoss]
    reads: tuple[str, ...] = ()
    check: Callable[[Settings], None] = lambda config: None
    divide_by: Callable[[Tensor, Tensor], Tensor] | None = None
    #: what it makes of the order of rewards alone, for a message; None where their size counts
    ignores_size: str | None = None
    measures: tuple[str, ...] = ()

    def units(self, scores: Tensor, groups: Tensor, config: Settings) -> Tensor:
        """Returns [units, k] int64 rows that stay together in a minibatch: single responses."""
        return torch.arange(len(groups), device=groups.device)[:, None]

    def loss(self, seen: ObjectiveInputs, config: Settings) -> Loss:
        terms = self.token_loss(seen, config)
        losses = terms.losses
        if seen.importance is not None:
            losses = on_real(seen.mask, seen.importance)[0] * losses
        return Loss(summed_losses(losses, seen.mask, config.loss_average), terms.clipped)

    def divisor(self, advantages: Tensor, mask: Tensor, units: int, tokens: Tensor, config: Settings) -> Tensor:
        """Returns the divisor of the loss sum of a whole minibatch of `units`, a scalar."""
        if self.divide_by is not None:
            return self.divide_by(advantages, mask)
        return tokens.new_tensor(units) if config.loss_average == "responses" else tokens


@dataclass(frozen=True)
class PairObjective:
    """An objective of pairs of responses to one prompt, the one with the higher proxy first: online DPO."""

    reads: tuple[str, ...] = ("dpo_beta", "dpo_min_margin")
    ignores_size: str | None = (
        "never reaches online DPO, which only asks which of two responses has the higher raw proxy"
    )
    measures: tuple[str, ...] = ("accuracy", "margin")

    def check(self, config: Settings) -> None:
        """Refuses settings that do not make pairs, or that no pair reads.

        Raises:
            RecipeError: names the settings.
        """
        if config.group_size != 2 or config.minibatch % 2:
            raise RecipeError(
                f"objective 'online_dpo' learns from pairs: group_size must be 2 and minibatch even, not "
                f"{config.group_size} and {config.minibatch}"
            )
        if config.kl_placement != "none" or config.whitening != "none" or config.advantage != "token_reward":
            raise RecipeError(
                "objective 'online_dpo' holds the policy to the reference by dpo_beta and reads no advantage: "
                "kl_placement and whitening must be 'none' and advantage 'token_reward', not "
                f"'{config.kl_placement}', '{config.whitening}' and '{config.advantage}'"
            )

    def units(self, scores: Tensor, groups: Tensor, config: Settings) -> Tensor:
        """Returns [pairs, 2] int64: rows (better, worse)."""
        return ordered_pairs(scores, groups, config.dpo_min_margin)

    def loss(self, seen: ObjectiveInputs, config: Settings) -> Loss:
        logprobs, reference = on_real(seen.mask, seen.logprobs, seen.reference)
        logratios = (logprobs - reference).sum(dim=1).view(-1, 2)
        losses, margins = preference_loss(logratios, config.dpo_beta)
        measures = {"accuracy": (margins > 0).sum(), "margin": margins.sum()}
        return Loss(losses.sum(), torch.zeros_like(seen.mask), measures)

    def divisor(self, advantages: Tensor, mask: Tensor, units: int, tokens: Tensor, config: Settings) -> Tensor:
        """Returns the pairs of a whole minibatch."""
        return tokens.new_tensor(units)


def _check_rlmec(config: Settings) -> None:
    if (config.advantage, config.whitening) != ("token_reward", "none"):
        raise RecipeError(
            "objective 'rlmec' weighs tokens by their own rewards: it needs advantage 'token_reward' and whitening "
            f"'none', not '{config.advantage}' and '{config.whitening}'"
        )


OBJECTIVES: Choices[TokenObjective | PairObjective] = Choices(
    "objective",
    {
        "clipped_surrogate": TokenObjective(
            lambda seen, config: clipped_surrogate(seen.logprobs, seen.old, seen.advantages, seen.mask, config.clip),
            reads=("clip", "importance_cap"),
        ),
        "policy_gradient": TokenObjective(
            lambda seen, config: policy_gradient(seen.logprobs, seen.advantages, seen.mask), reads=("importance_cap",)
        ),
        "rlmec": TokenObjective(
            lambda seen, config: rlmec_objective(
                seen.logprobs, seen.reference, seen.advantages, seen.mask, config.clip
            ),
            reads=("clip",),
            check=_check_rlmec,
            divide_by=nonzero_rewards,
        ),
        "online_dpo": PairObjective(),
    },
    needs=("units", "loss", "divisor", "reads", "check", "measures", "ignores_size"),
)
