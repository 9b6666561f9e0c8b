"""Does negative credit find the wrong tokens? Precision, recall and area under the curve over tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlhf_core.errors import DataError


def negative_credit(credits: Sequence[Sequence[float]], mistaken: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Returns precision, recall and the like of credit below 0 as a sign of mistaken tokens in wrong responses.

    Args:
        credits: per response the credit of each token.
        mistaken: the same shape, whether the token is truly wrong.

    Returns:
        {precision, recall: of tokens with credit below 0; auc: chance that a mistaken token has less credit than
        another, over all responses (ties count half); auc_within: the same inside a response, averaged over responses
        that have both kinds; tokens, mistaken: how many}. What has no denominator is left out.

    Raises:
        DataError: two different numbers of tokens.
    """
    for row, (own, wrong) in enumerate(zip(credits, mistaken, strict=True), start=1):
        if len(own) != len(wrong):
            raise DataError(f"{len(own)} credits for {len(wrong)} tokens", row=row)
    values = np.array([value for row in credits for value in row], dtype=np.float64)
    truth = np.array([value for row in mistaken for value in row], dtype=bool)
    blamed = values < 0
    found = {"tokens": float(len(values)), "mistaken": float(truth.sum())}
    if blamed.any():
        found["precision"] = float(truth[blamed].mean())
    if truth.any():
        found["recall"] = float(blamed[truth].mean())
    within = [auc(row, wrong) for row, wrong in zip(credits, mistaken, strict=True)]
    for name, areas in (("auc", [auc(values, truth)]), ("auc_within", within)):
        known = [area for area in areas if area is not None]
        if known:
            found[name] = sum(known) / len(known)
    return found


def auc(credits: Sequence[float] | np.ndarray, mistaken: Sequence[bool] | np.ndarray) -> float | None:
    """Returns the chance that a mistaken token has less credit than another, ties half; None where one kind is
    missing."""
    from scipy.stats import rankdata

    truth = np.asarray(mistaken, dtype=bool)
    positive, negative = int(truth.sum()), int((~truth).sum())
    if not positive or not negative:
        return None
    ranks = rankdata(-np.asarray(credits, dtype=np.float64))
    return float((ranks[truth].sum() - positive * (positive + 1) / 2) / (positive * negative))
