"""How well negative token rewards find the truly wrong tokens of a solution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from rlhf_core.errors import DataError


@dataclass(frozen=True)
class TokenFidelity:
    """Punished tokens against wrong ones, pooled over solutions; NaN where undefined.

    Attributes:
        precision: share of the punished tokens that are wrong.
        recall: share of the wrong tokens that are punished.
        auc: probability that a wrong token has a lower reward than a right one, ties half.
        tokens, wrong: counts.
    """

    precision: float
    recall: float
    auc: float
    tokens: int
    wrong: int


def token_fidelity(
    rewards: Sequence[Sequence[float]], wrong: Sequence[Sequence[bool]], threshold: float = 0.0
) -> TokenFidelity:
    """Precision, recall and area under the curve of low rewards at wrong tokens.

    Args:
        rewards: of each solution, [tokens]; any credit assignment's.
        wrong: of each solution, [tokens].
        threshold: a token counts as punished below it.

    Raises:
        DataError: another number of rewards than of tokens.
    """
    for number, (values, marks) in enumerate(zip(rewards, wrong, strict=True), start=1):
        if len(values) != len(marks):
            raise DataError(f"{len(values)} rewards for {len(marks)} tokens", row=number, field="rewards")
    scores = np.concatenate([np.asarray(values, dtype=np.float64) for values in rewards] or [np.zeros(0)])
    truth = np.concatenate([np.asarray(marks, dtype=bool) for marks in wrong] or [np.zeros(0, dtype=bool)])
    punished = scores < threshold
    hits, n_wrong, n_right = int((punished & truth).sum()), int(truth.sum()), int((~truth).sum())
    auc = math.nan
    if n_wrong and n_right:
        ranks = stats.rankdata(-scores)
        auc = float((ranks[truth].sum() - n_wrong * (n_wrong + 1) / 2) / (n_wrong * n_right))
    precision = hits / int(punished.sum()) if punished.any() else math.nan
    return TokenFidelity(precision, hits / n_wrong if n_wrong else math.nan, auc, len(scores), n_wrong)
