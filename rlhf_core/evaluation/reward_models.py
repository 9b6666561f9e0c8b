"""Quality of a reward model on preference pairs: accuracy and calibration of sigmoid(margin)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import wilson_interval


@dataclass(frozen=True)
class ReliabilityBin:
    """Pairs whose predicted probability of 'A better' is in [lower, upper) (the last bin includes 1)."""

    lower: float
    upper: float
    n: int
    mean_probability: float
    accuracy: float


def pairwise_accuracy(chosen: ArrayLike, rejected: ArrayLike) -> dict[str, float]:
    """Returns the share of pairs with chosen > rejected, strictly: a tie is wrong.

    Args:
        chosen, rejected: [n] rewards.

    Returns:
        {accuracy, lower, upper (Wilson, 95 %), n, ties}; NaN accuracy for n = 0.
    """
    margin = _margins(chosen, rejected)
    right = int((margin > 0).sum())
    interval = wilson_interval(right, len(margin))
    return {
        "accuracy": interval.estimate,
        "lower": interval.lower,
        "upper": interval.upper,
        "n": len(margin),
        "ties": int((margin == 0).sum()),
    }


def calibration(
    chosen: ArrayLike, rejected: ArrayLike, *, n_bins: int = 10, symmetric: bool = True
) -> dict[str, float | list[ReliabilityBin]]:
    """Returns the expected calibration error and Brier score of p = sigmoid(chosen - rejected).

    Args:
        chosen, rejected: [n] rewards.
        n_bins: equal-width bins.
        symmetric: score the predicted winner: confidence max(p, 1-p) in [.5, 1] against whether it is the
            chosen response (a tie counts half). A pair has no natural first element, so this is the
            calibration of the stated preference. False: p itself against the constant outcome 1, bins over
            [0, 1].

    Returns:
        {ece, brier, bins}: ece = sum over bins of share * |accuracy - mean confidence|; brier = mean (1-p)^2;
        NaN without pairs.
    """
    margin = _margins(chosen, rejected)
    probability = _sigmoid(margin)
    if symmetric:
        confidence = np.maximum(probability, 1.0 - probability)
        outcome = np.where(margin > 0, 1.0, np.where(margin < 0, 0.0, 0.5))
        edges = np.linspace(0.5, 1.0, n_bins + 1)
    else:
        confidence, outcome = probability, np.ones_like(probability)
        edges = np.linspace(0.0, 1.0, n_bins + 1)
    n = len(margin)
    position = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, n_bins - 1)
    bins: list[ReliabilityBin] = []
    error = 0.0
    for b in range(n_bins):
        rows = position == b
        count = int(rows.sum())
        mean = float(confidence[rows].mean()) if count else math.nan
        accuracy = float(outcome[rows].mean()) if count else math.nan
        bins.append(ReliabilityBin(float(edges[b]), float(edges[b + 1]), count, mean, accuracy))
        if count:
            error += count / n * abs(accuracy - mean)
    return {
        "ece": error if n else math.nan,
        "brier": float(((1.0 - probability) ** 2).mean()) if n else math.nan,
        "bins": bins,
    }


def _margins(chosen: ArrayLike, rejected: ArrayLike) -> NDArray[np.float64]:
    left, right = np.asarray(chosen, dtype=np.float64), np.asarray(rejected, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise DataError(f"chosen and rejected must be two equally long lists, not {left.shape} and {right.shape}")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise DataError("a reward is not finite", field="reward")
    return left - right


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))
