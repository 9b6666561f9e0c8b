"""Credit-assignment fidelity: do learned rewards pay the clauses that earn the true reward, and does negative
credit find the wrong tokens?

The testbed knows every clause's true reward; learned rewards are per token. A token belongs to the clause
that contains its first character (the middle of an empty span is that character, too).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


class ScoredResponse(NamedTuple):
    """One response with learned token rewards and true clauses.

    Attributes:
        rewards: per-token learned rewards; None or NaN where none is defined (EOS, dense).
        offsets: per-token [start, end) character spans in the response.
        clauses: (start, end, true reward) spans in order, not overlapping.
    """

    rewards: Sequence[float | None]
    offsets: Sequence[tuple[int, int]]
    clauses: Sequence[tuple[int, int, float]]


def clause_rewards(response: ScoredResponse) -> tuple[Floats, Floats]:
    """Returns the learned reward of each clause, the sum over its tokens, and the true one.

    Returns:
        ([n_clauses] learned, NaN for a clause without any token reward; [n_clauses] true).
    """
    starts = np.array([start for start, _, _ in response.clauses], dtype=int)
    ends = np.array([end for _, end, _ in response.clauses], dtype=int)
    totals, counts = np.zeros(len(starts)), np.zeros(len(starts))
    for reward, (start, _) in zip(response.rewards, response.offsets, strict=True):
        if reward is None or math.isnan(reward):
            continue
        index = int(np.searchsorted(starts, start, side="right")) - 1
        if 0 <= index < len(starts) and start < ends[index]:
            totals[index] += reward
            counts[index] += 1
    learned = np.where(counts > 0, totals, np.nan)
    return learned, np.array([value for _, _, value in response.clauses], dtype=np.float64)


def fidelity(responses: Sequence[ScoredResponse]) -> dict[str, float]:
    """Correlates learned with true clause rewards over responses; clauses without a token are left out.

    Returns:
        `pearson` and `spearman` over all clauses of all responses; `within_pearson` after subtracting each response's
        mean and `within_spearman`, the mean over responses of the correlation inside each, so that knowing the
        response's total earns nothing. NaN where undefined: fewer than two clauses, or one side constant; such a
        response is left out of `within_spearman`.
    """
    every: list[tuple[Floats, Floats]] = [(np.zeros(0), np.zeros(0))]
    centred, ranks = [*every], list[float]()
    for response in responses:
        learned, true = clause_rewards(response)
        paid = ~np.isnan(learned)
        learned, true = learned[paid], true[paid]
        every.append((learned, true))
        if len(learned) >= 2:
            centred.append((learned - learned.mean(), true - true.mean()))
            rank = _spearman(learned, true)
            if not math.isnan(rank):
                ranks.append(rank)
    learned, true = map(np.concatenate, zip(*every, strict=True))
    return {
        "pearson": _pearson(learned, true),
        "spearman": _spearman(learned, true),
        "within_pearson": _pearson(*map(np.concatenate, zip(*centred, strict=True))),
        "within_spearman": float(np.mean(ranks)) if ranks else math.nan,
    }


def boundary_scores(
    predicted: Sequence[Sequence[int]], true: Sequence[Sequence[int]], *, tolerance: int = 0
) -> dict[str, float]:
    """Returns the micro-averaged precision, recall and f1 of segment starts, but for 0, where every one starts.

    Args:
        predicted, true: per response the start character positions; duplicates count once.
        tolerance: characters a predicted start may be off; each true start is matched at most once, nearest
            in order.

    Returns:
        Nothing predicted and nothing true: all 1. Otherwise precision is 0 without predictions, recall 0 without true
        starts, and f1 0 when both are 0.
    """
    hits = n_predicted = n_true = 0
    for guess, truth in zip(predicted, true, strict=True):
        left, right = sorted(set(guess) - {0}), sorted(set(truth) - {0})
        n_predicted, n_true = n_predicted + len(left), n_true + len(right)
        hits += _matches(left, right, tolerance)
    if n_predicted == 0 and n_true == 0:
        return {"precision": 1.0, "recall": 1.0, "f1": 1.0}
    precision = hits / n_predicted if n_predicted else 0.0
    recall = hits / n_true if n_true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if hits else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def _matches(predicted: Sequence[int], true: Sequence[int], tolerance: int) -> int:
    """Returns the largest number of one-to-one matches within the tolerance (both sorted: greedy is optimal)."""
    i = j = hits = 0
    while i < len(predicted) and j < len(true):
        if abs(predicted[i] - true[j]) <= tolerance:
            hits, i, j = hits + 1, i + 1, j + 1
        elif predicted[i] < true[j]:
            i += 1
        else:
            j += 1
    return hits


def negative_credit(credits: Sequence[Sequence[float]], mistaken: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Returns precision, recall and the like of credit below 0 as a sign of mistaken tokens in wrong responses.

    Args:
        credits: per response the credit of each token.
        mistaken: the same shape, whether the token is truly wrong.

    Returns:
        {precision, recall: of tokens with credit below 0; auc: chance that a mistaken token has less credit than
        another, over all responses (ties count half); auc_within: the same inside a response, averaged over responses
        that have both kinds; tokens, mistaken: how many}. What has no denominator is left out.
    """
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


def _constant(x: Floats) -> bool:
    return len(x) < 2 or float(np.ptp(x)) <= 1e-12 * max(1.0, float(np.abs(x).max()))


def _pearson(x: Floats, y: Floats) -> float:
    if _constant(x) or _constant(y):
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def _spearman(x: Floats, y: Floats) -> float:
    from scipy import stats

    if _constant(x) or _constant(y):
        return math.nan
    return _pearson(stats.rankdata(x), stats.rankdata(y))
