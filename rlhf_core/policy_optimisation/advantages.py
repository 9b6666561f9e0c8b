"""Advantage estimators over masked token rewards, and whitening.

Tensors of tokens are [batch, response_len] float32, 0 on padding where they are returned; masks are bool, a prefix of
every row. Scores are [batch] float32, one per response; groups [batch] int64, equal for responses to the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_core.choices import Choices
from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def on_real(mask: Tensor, *values: Tensor) -> list[Tensor]:
    """Returns float32 values of tokens with 0 on padding: nothing that stands there reaches arithmetic or gradients."""
    return [torch.where(mask, value.float(), 0.0) for value in values]


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float = 1.0, lam: float = 0.95) -> Tensor:
    """Returns A_t = delta_t + gamma*lam*A_{t+1}, delta_t = r_t + gamma*V_{t+1} - V_t, with V = 0 after the last token.

    A value is that of the state in which a token is chosen. Source: Schulman et al. 2016, Eq. 16.
    """
    rewards, values = on_real(mask, rewards, values)
    advantages = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[0], device=rewards.device)
    next_value = torch.zeros_like(running)
    for t in range(rewards.shape[1] - 1, -1, -1):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        running = (delta + gamma * lam * running) * mask[:, t]
        advantages[:, t] = running
        next_value = values[:, t]
    return advantages


def rewards_to_go(rewards: Tensor, mask: Tensor, gamma: float = 1.0) -> Tensor:
    """Returns the discounted sum of rewards from each token on."""
    (rewards,) = on_real(mask, rewards)
    returns = torch.zeros_like(rewards)
    running = torch.zeros(rewards.shape[0], device=rewards.device)
    for t in range(rewards.shape[1] - 1, -1, -1):
        running = rewards[:, t] + gamma * running
        returns[:, t] = running
    return returns * mask


#: Standard deviations that scores of a group are divided by; 'none' centres only.
GROUP_STDS = ("population", "sample", "none")


def group_relative(scores: Tensor, groups: Tensor, std: str = "population") -> Tensor:
    """Returns [batch] float32: (score - mean of its group) / standard deviation of its group, one of `GROUP_STDS`.

    Nothing is added to the standard deviation, so that an affine map of the scores (a > 0) changes nothing; 0 where the
    scores of a group are equal (to a millionth of their size) and in a group of one. Source: Shao et al. 2024, §4.1.2;
    PAR, appendix 11.2.
    """
    counts, centred = _centred(scores, groups)
    if std == "none":
        return centred.float()
    freedom = (counts - 1).clamp(min=1) if std == "sample" else counts
    deviation = (_group_sums(centred**2, groups) / freedom).sqrt()
    size = (_group_sums(scores.double() ** 2, groups) / counts).sqrt()
    return torch.where(deviation > 1e-6 * size, centred / deviation, 0.0).float()


def leave_one_out(scores: Tensor, groups: Tensor) -> Tensor:
    """Returns [batch] float32: the score minus the mean of the other responses of its group, 0 in a group of one.

    Source: Ahmadian et al. 2024, Eq. 9 (RLOO).
    """
    counts, centred = _centred(scores, groups)
    return torch.where(counts > 1, centred * counts / (counts - 1).clamp(min=1), 0.0).float()


def _group_sums(values: Tensor, groups: Tensor) -> Tensor:
    """Returns [batch] float64: each row's sum over its group."""
    index = torch.unique(groups, return_inverse=True)[1]
    return torch.zeros_like(values, dtype=torch.float64).scatter_add_(0, index, values.double())[index]


def _centred(scores: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns (size of each response's group, score minus its group's mean), [batch] float64."""
    counts = _group_sums(torch.ones_like(scores), groups)
    return counts, scores.double() - _group_sums(scores, groups) / counts


def on_tokens(scores: Tensor, mask: Tensor) -> Tensor:
    """Returns each response's number on all its real tokens."""
    return torch.where(mask, scores.float()[:, None], 0.0)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Returns the mean over real tokens; 0 when there are none."""
    return torch.where(mask, values, 0.0).sum() / mask.sum().clamp(min=1)


def whiten(values: Tensor, mask: Tensor, epsilon: float = 1e-8) -> Tensor:
    """Returns (v - mean)/std over all real tokens of the batch (population std), 0 on padding.

    All zeros when the values are equal, to a millionth of their mean: the mean's rounding is no deviation. Values whose
    squares float32 does not hold are whitened in float64.
    """
    mean = masked_mean(values, mask)
    variance = masked_mean((values - mean) ** 2, mask)
    if values.dtype != torch.float64 and not bool(torch.isfinite(variance)):
        return whiten(values.double(), mask, epsilon).to(values.dtype)
    equal = variance <= (1e-6 * mean) ** 2
    return torch.where(mask & ~equal, (values - mean) * torch.rsqrt(variance + epsilon), 0.0)


@dataclass(frozen=True)
class EstimatorInputs:
    """Inputs of an advantage estimator for a rollout batch; values are the critic's, zeros without one."""

    rewards: Tensor
    values: Tensor
    mask: Tensor
    groups: Tensor

    @property
    def scores(self) -> Tensor:
        """Returns each response's total."""
        return on_real(self.mask, self.rewards)[0].sum(dim=1)


#: An `OptimiserConfig`, whose module reads the tables here and in `objectives`.
Settings = Any


@dataclass(frozen=True)
class AdvantageEstimator:
    """An estimator as a setting names it.

    Args:
        estimate: (rewards, settings) -> advantages before whitening.
        needs_critic: whether it reads a critic's values.
        compares: whether it compares responses to one prompt, so that a group needs at least 2.
        reads: settings that only some estimators read.
        cancels: what it does to an affine shaping of one reward per response, for a message; None if it shows.
    """

    estimate: Callable[[EstimatorInputs, Settings], Tensor]
    needs_critic: bool = False
    compares: bool = False
    reads: tuple[str, ...] = ()
    cancels: str | None = None


def token_reward(given: EstimatorInputs, config: Settings) -> Tensor:
    """Returns each token's own reward."""
    return on_real(given.mask, given.rewards)[0]


ADVANTAGES = Choices(
    "advantage",
    {
        "gae": AdvantageEstimator(
            lambda given, config: gae(given.rewards, given.values, given.mask, config.gamma, config.lam),
            needs_critic=True,
            reads=("gamma", "lam"),
        ),
        "reward_to_go": AdvantageEstimator(
            lambda given, config: rewards_to_go(given.rewards, given.mask, config.gamma), reads=("gamma",)
        ),
        "group_relative": AdvantageEstimator(
            lambda given, config: on_tokens(group_relative(given.scores, given.groups, config.group_std), given.mask),
            compares=True,
            reads=("group_std",),
            cancels="maps the rewards of a group by a*r + b with a > 0, which GRPO's advantages (r - mean)/std cancel",
        ),
        "leave_one_out": AdvantageEstimator(
            lambda given, config: on_tokens(leave_one_out(given.scores, given.groups), given.mask), compares=True
        ),
        "token_reward": AdvantageEstimator(token_reward),
    },
    needs=("estimate", "needs_critic", "compares", "reads", "cancels"),
)


#: Targets of the critic.
VALUE_TARGETS = ("advantage_plus_value", "monte_carlo")


def value_targets(given: EstimatorInputs, advantages: Tensor, config: Settings) -> Tensor:
    """Returns the critic's targets: advantages before whitening plus values, or discounted later rewards."""
    if config.value_target == "monte_carlo":
        return rewards_to_go(given.rewards, given.mask, config.gamma)
    return sum(on_real(given.mask, advantages, given.values), torch.zeros(()))
