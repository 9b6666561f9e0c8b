"""Reward shaping as pure functions, elementwise and float32.

r is the proxy reward and r_ref^m the proxy reward of the m-th reference response to the same prompt. Functions with
`references` average over m: a value v becomes mean_m f(v - r_ref^m). Source: PAR, §3.2, §4.1, Figure 4b, Algorithm 4.
"""

from __future__ import annotations

from collections.abc import Callable
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


def over_references(function: Callable[[Tensor], Tensor], values: Tensor, references: Tensor) -> Tensor:
    """Returns mean_m f(v - r_ref^m).

    Args:
        function: of centered rewards, elementwise.
        values: [batch, n] float32.
        references: [batch, M] float32, M at least 1.

    Returns:
        [batch, n] float32.
    """
    total = torch.zeros_like(values, dtype=torch.float32)
    for m in range(references.shape[1]):
        total += function(values.float() - references[:, m : m + 1].float())
    return total / references.shape[1]


def sigmoid(values: Tensor, k: float = 1.0) -> Tensor:
    """Returns 1/(1 + exp(-k v)), in (0, 1)."""
    return torch.sigmoid(k * values.float())


def sigmoid_centered(values: Tensor, references: Tensor, k: float = 1.0) -> Tensor:
    """Returns mean_m sigmoid(k(v - r_ref^m)); PAR for k = 1. Arguments as in `over_references`. Source: PAR,
    §3.2."""
    return over_references(lambda c: sigmoid(c, k), values, references)


def tanh(values: Tensor) -> Tensor:
    """Returns tanh(v), in (-1, 1). Source: PAR, Figure 4 ('tanh(uncentered)')."""
    return torch.tanh(values.float())


def tanh_centered(values: Tensor, references: Tensor) -> Tensor:
    """Returns mean_m tanh(v - r_ref^m). Source: PAR, Figure 4."""
    return over_references(tanh, values, references)


def centered(values: Tensor, references: Tensor) -> Tensor:
    """Returns mean_m (v - r_ref^m), without a bound. Source: PAR, §12 (contrastive rewards)."""
    return over_references(lambda c: c, values, references)


def sgfc(values: Tensor, references: Tensor, shift: float = 3.0, k: float = 3.0) -> Tensor:
    """Returns mean_m sigmoid(k(v - r_ref^m - shift)): slow growth, fast convergence. Source: PAR, Figure 4b."""
    return over_references(lambda c: sigmoid(c - shift, k), values, references)


def polynomial(values: Tensor, references: Tensor, clamp: bool = False) -> Tensor:
    """Returns mean_m p(v - r_ref^m) with p the fifth-order fit of the sigmoid on (-5, 5), 0 below and 1 above.

    The fit leaves [0, 1] near its ends (-.011 at -5, 1.011 at 5), so it is not monotone there.

    Args:
        values, references: as in `over_references`.
        clamp: keep the fit within [0, 1].
    """
    fifth, third, first, constant = POLYNOMIAL

    def fit(c: Tensor) -> Tensor:
        value = fifth * c**5 + third * c**3 + first * c + constant
        value = value.clamp(0.0, 1.0) if clamp else value
        return torch.where(c <= -5.0, 0.0, torch.where(c >= 5.0, 1.0, value))

    return over_references(fit, values, references)


def reference_percentile(references: Tensor, percentile: float = 0.85) -> Tensor:
    """Returns [batch] float32: the percentile of the normal with the references' mean and sample deviation.

    Args:
        references: [batch, M] float32, M at least 2.
        percentile: in (0, 1).
    """
    mean, deviation = references.float().mean(dim=1), references.float().std(dim=1, correction=1)
    return mean + NormalDist().inv_cdf(percentile) * (deviation + LSC_EPSILON)


def lsc(values: Tensor, references: Tensor, percentile: float = 0.85) -> Tensor:
    """Returns log sigmoid(v - q), q the references' percentile; negative, without a lower bound. Source: PAR, §4.1
    (LSC).

    Args:
        values: [batch, n] float32.
        references: [batch, M] float32, M at least 2.
        percentile: in (0, 1).
    """
    return torch.nn.functional.logsigmoid(values.float() - reference_percentile(references, percentile)[:, None])


def ceil(values: Tensor, ceiling: float) -> Tensor:
    """Returns min(v, ceiling). Source: PAR, Figure 3."""
    return values.float().clamp(max=ceiling)


def clip(values: Tensor, mean: float, deviation: float) -> Tensor:
    """Returns v limited to [mean - deviation, mean + deviation]. Source: PAR, §4.1 (Clip)."""
    return values.float().clamp(mean - deviation, mean + deviation)


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
