"""Quality of a reward model on preference pairs: accuracy and calibration of sigmoid(margin)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import wilson_interval


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


def calibration(chosen: ArrayLike, rejected: ArrayLike, *, n_bins: int = 10) -> dict[str, float]:
    """Returns the expected calibration error and Brier score of p = sigmoid(chosen - rejected).

    A pair has no natural first element, so the stated preference is scored: the confidence max(p, 1 - p) against
    whether the predicted winner is the chosen response; a tie counts half.

    Args:
        chosen, rejected: [n] rewards.
        n_bins: equal-width bins over [.5, 1].

    Returns:
        {ece: sum over bins of share * |accuracy - mean confidence|, brier: mean (1 - p)^2}; NaN without pairs.
    """
    margin = _margins(chosen, rejected)
    n = len(margin)
    if not n:
        return {"ece": math.nan, "brier": math.nan}
    probability = _sigmoid(margin)
    confidence = np.maximum(probability, 1.0 - probability)
    outcome = np.where(margin > 0, 1.0, np.where(margin < 0, 0.0, 0.5))
    edges = np.linspace(0.5, 1.0, n_bins + 1)
    position = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, n_bins - 1)
    error = 0.0
    for rows in (position == b for b in range(n_bins)):
        if rows.any():
            error += int(rows.sum()) / n * abs(float(outcome[rows].mean()) - float(confidence[rows].mean()))
    return {"ece": error, "brier": float(((1.0 - probability) ** 2).mean())}


def _margins(chosen: ArrayLike, rejected: ArrayLike) -> NDArray[np.float64]:
    left, right = np.asarray(chosen, dtype=np.float64), np.asarray(rejected, dtype=np.float64)
    if left.shape != right.shape or left.ndim != 1:
        raise DataError(f"chosen and rejected must be two equally long lists, not {left.shape} and {right.shape}")
    if not (np.isfinite(left).all() and np.isfinite(right).all()):
        raise DataError("a reward is not finite", field="reward")
    return left - right


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.exp(-np.logaddexp(0.0, -x))
