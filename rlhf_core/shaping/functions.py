"""Reward shaping as pure functions, elementwise and float32. Source: PAR, §3.2, §4.1, Figure 4b, Algorithm 4."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING

from rlhf_core.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


#: c^5, c^3, c and 1 of the fifth-order approximation of the sigmoid on [-5, 5] (PAR's released code).
POLYNOMIAL = (2.0266917e-4, -1.01309121e-2, 0.2287885118, 0.5)
#: Added to the references' sample standard deviation, so that equal references have a percentile.
LSC_EPSILON = 1e-5
#: Share of their size by which equal float32 values may differ.
ROUNDING = 1e-6


def sigmoid(values: Tensor, k: float = 1.0) -> Tensor:
    """Returns 1/(1 + exp(-k v)), in (0, 1). Of centred rewards and k = 1: PAR. Source: PAR, §3.2."""
    return torch.sigmoid(k * values.float())


def sgfc(values: Tensor, shift: float = 3.0, k: float = 3.0) -> Tensor:
    """Returns sigmoid(k(v - shift)): slow growth, fast convergence. Source: PAR, Figure 4b."""
    return sigmoid(values - shift, k)


def polynomial(values: Tensor, clamp: bool = False) -> Tensor:
    """Returns the fifth-order fit of the sigmoid on (-5, 5), 0 below and 1 above.

    The fit leaves [0, 1] near its ends (-.011 at -5, 1.011 at 5) unless it is clamped, so it is not monotone there.
    """
    fifth, third, first, constant = POLYNOMIAL
    value = fifth * values**5 + third * values**3 + first * values + constant
    value = value.clamp(0.0, 1.0) if clamp else value
    return torch.where(values <= -5.0, 0.0, torch.where(values >= 5.0, 1.0, value))


def lsc(values: Tensor, references: Tensor, percentile: float = 0.85) -> Tensor:
    """Returns log sigmoid(v - q), q a percentile of the normal with the references' mean and sample deviation.

    Args:
        values: [batch, n] float32.
        references: [batch, M] float32, M at least 2.
        percentile: in (0, 1).

    Returns:
        [batch, n] float32, negative, without a lower bound. Source: PAR, §4.1 (LSC).
    """
    mean, deviation = references.float().mean(dim=1), references.float().std(dim=1, correction=1)
    quantile = mean + NormalDist().inv_cdf(percentile) * (deviation + LSC_EPSILON)
    return torch.nn.functional.logsigmoid(values.float() - quantile[:, None])


def meanstd(values: Tensor, mean: float, deviation: float) -> Tensor:
    """Returns (v - mean)/deviation; 1 stands in for a deviation below a millionth of the mean, which is rounding.

    Source: PAR, §4.1 (Meanstd).
    """
    return (values.float() - mean) / (deviation if deviation > ROUNDING * abs(mean) else 1.0)


def minmax(values: Tensor, minimum: float, maximum: float) -> Tensor:
    """Returns (v - min)/(max - min); 1/2 where they are equal to a millionth of their size, which is rounding.

    Source: PAR, §4.1 (Minmax).
    """
    if maximum - minimum <= ROUNDING * max(abs(minimum), abs(maximum)):
        return torch.full_like(values, 0.5, dtype=torch.float32)
    return (values.float() - minimum) / (maximum - minimum)


def length_penalty(values: Tensor, lengths: Tensor, beyond: float = 300.0, per_token: float = 0.01) -> Tensor:
    """Returns v less `per_token` for every token beyond `beyond`.

    Args:
        values: [batch, n] float32. All values of a response fall alike, so that their mean falls by the penalty.
        lengths: [batch] int64, tokens of the responses, EOS included.
        beyond: tokens without penalty.
        per_token: reward per token. Source: PAR, Algorithm 4.
    """
    return values.float() - per_token * (lengths.float() - beyond).clamp(min=0.0)[:, None]
