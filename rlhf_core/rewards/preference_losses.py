"""Losses of reward models on preference pairs: Bradley-Terry, ODIN's two heads, and the regularisation of rewards.

A loss names the heads that it trains, of which the first is read when the model is measured, normalised and used
(ODIN's length head is trained to be thrown away), and how many pairs a microbatch needs for it to say anything. Called
with the evaluations e(x, y) of each head, the [pairs] tokens of the chosen and the rejected responses (float32) and the
model's heads, it returns (sum of the loss over pairs, sums over pairs of further measures).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.choices import Choices
from rlhf_core.lazy import torch
from rlhf_core.typed import Checked, at_least

if TYPE_CHECKING:
    from torch import Tensor

#: Evaluations of each head, of the chosen and of the rejected responses: name -> ([pairs], [pairs]).
Evaluations = Mapping[str, tuple["Tensor", "Tensor"]]


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Returns [pairs] float32: -log sigmoid(chosen - rejected). Source: Segment, Eq. 1 and 3."""
    return -torch.nn.functional.logsigmoid(chosen.float() - rejected.float())


def reward_regularisation(chosen: Tensor, rejected: Tensor) -> Tensor:
    """Returns [pairs] float32: r_w^2 + r_l^2. Source: PAR, §4.1 (Reg)."""
    return chosen.float() ** 2 + rejected.float() ** 2


def correlation(values: Tensor, others: Tensor) -> Tensor:
    """Returns Pearson correlation of two [n] tensors, float32; 0 (without a gradient) where either is constant, to a
    millionth of its mean: rounding is no deviation."""
    a, b = values.float() - values.float().mean(), others.float() - others.float().mean()
    if _constant(values, a) or _constant(others, b):
        return 0.0 * a.sum()
    return (a * b).sum() / (a.norm() * b.norm())


def _constant(values: Tensor, deviations: Tensor) -> bool:
    return bool(deviations.detach().abs().max() <= 1e-6 * values.detach().float().mean().abs())


def head_similarity(first: torch.nn.Module, second: torch.nn.Module) -> Tensor:
    """Returns |W_1 . W_2| / (|W_1| |W_2|) of two linear heads' weights, a scalar in [0, 1]. Source: ODIN, via PAR
    §4.1."""
    a, b = _weight(first), _weight(second)
    return (a @ b).abs() / (a.norm() * b.norm()).clamp(min=1e-12)


def _weight(head: torch.nn.Module) -> Tensor:
    """Returns [hidden] float32: a bias-free head's weight, read by its forward pass, which gathers what is sharded."""
    assert isinstance(head, torch.nn.Linear)
    parameter = head.weight
    units = torch.eye(head.in_features, dtype=parameter.dtype, device=parameter.device)
    weight: Tensor = head(units)
    return weight.squeeze(-1).float()


@dataclass(frozen=True)
class BradleyTerry(Checked):
    """-log sigmoid(r_w - r_l), and with a coefficient of regularisation + beta (r_w^2 + r_l^2).

    Args:
        regularisation: beta; PAR's Reg has .005. Source: PAR, §4.1 and §8.
    """

    regularisation: Annotated[float, at_least(0)] = 0.0
    heads: ClassVar[tuple[str, ...]] = ("reward",)
    minimum_pairs: ClassVar[int] = 1

    def __call__(
        self, evaluated: Evaluations, lengths: tuple[Tensor, Tensor], heads: Mapping[str, torch.nn.Module]
    ) -> tuple[Tensor, dict[str, float]]:
        chosen, rejected = evaluated["reward"]
        loss = bradley_terry_loss(chosen, rejected).sum()
        if not self.regularisation:
            return loss, {}
        squares = reward_regularisation(chosen, rejected).sum()
        return loss + self.regularisation * squares, {"regularisation": float(squares.detach())}


@dataclass(frozen=True)
class Odin(Checked):
    """Bradley-Terry on the sum of a quality and a length head, which the length is to leave and to enter.

    loss = BT(Q + L) + length * (|corr(Q, len)| - corr(L, len)) + orthogonality * |W_Q.W_L| / (|W_Q| |W_L|)

    Correlations are over the responses of a microbatch, so that they count once per pair, as the similarity does.
    Source: ODIN (Chen et al., 2024), Eq. 3 to 6, which PAR §8 follows.

    Args:
        length: weight of both correlations.
        orthogonality: weight of the similarity of the heads.
    """

    length: Annotated[float, at_least(0)] = 1.0
    orthogonality: Annotated[float, at_least(0)] = 1.0
    heads: ClassVar[tuple[str, ...]] = ("quality", "length")
    minimum_pairs: ClassVar[int] = 2

    def __call__(
        self, evaluated: Evaluations, lengths: tuple[Tensor, Tensor], heads: Mapping[str, torch.nn.Module]
    ) -> tuple[Tensor, dict[str, float]]:
        quality, length = evaluated["quality"], evaluated["length"]
        pairs, tokens = len(quality[0]), torch.cat(lengths)
        loss = bradley_terry_loss(quality[0] + length[0], quality[1] + length[1]).sum()
        of_quality, of_length = correlation(torch.cat(quality), tokens), correlation(torch.cat(length), tokens)
        similarity = head_similarity(heads["quality"], heads["length"])
        loss = loss + pairs * (self.length * (of_quality.abs() - of_length) + self.orthogonality * similarity)
        measures = {"quality_length": of_quality, "length_length": of_length, "head_similarity": similarity}
        return loss, {name: pairs * float(value.detach()) for name, value in measures.items()}


BRADLEY_TERRY = BradleyTerry()
LOSSES: Choices[type[Any]] = Choices(
    "loss", {"bradley_terry": BradleyTerry, "odin": Odin}, needs=("heads", "minimum_pairs", "__call__")
)


PreferenceLoss = BradleyTerry | Odin


def build_loss(spec: str | Mapping[str, Any]) -> PreferenceLoss:
    """Returns the loss that a reward-model file names, `bradley_terry` or `{kind: odin, length: 1.0}`.

    Raises:
        RecipeError: an unknown kind or option, with the nearest known; a value out of range.
    """
    loss: PreferenceLoss = LOSSES.build(spec)
    return loss
