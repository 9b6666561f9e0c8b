"""Reward models on preference pairs: accuracy, calibration, RewardBench, and what a score must not depend on.

A pair is right only if chosen > rejected, strictly. A section's score is the mean of its subsets' accuracies weighted
by the official numbers of examples, in which math-prm counts 984, as many as all code subsets together; a subset that
the official benchmark does not have is weighted by its number of pairs. Source: Lambert et al. 2024, §4.3 and the
benchmark's released constants; Sentence, §5.1, whose average is the plain mean of the four sections.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.benchmark_names import REWARD_BENCH
from rlhf_core.evaluation.statistics import Interval, require_finite, wilson_interval

SECTIONS = ("chat", "chat_hard", "safety", "reasoning")
#: Largest difference of a score from itself in another batch, in units of the scores' spread (at least 1).
TOLERANCE = 1e-3
#: Bins of calibration, of equal width over [.5, 1].
BINS = 10

_SECTION_OF = {subset: section for section, subsets in REWARD_BENCH.items() for subset in subsets}


@dataclass(frozen=True)
class ScoredPair:
    """A pair with the reward of both responses.

    Attributes:
        id, subset: whose.
        section: of `SECTIONS`; any other word is reported beside them.
        chosen, rejected: rewards.
    """

    id: str
    section: str
    subset: str
    chosen: float
    rejected: float

    @property
    def right(self) -> bool:
        return self.chosen > self.rejected


def section_of(subset: str) -> str:
    """Returns the section of an official subset; a subset of another benchmark is a section of its own."""
    return _SECTION_OF.get(subset, subset)


def reward_bench_scores(pairs: Sequence[ScoredPair]) -> dict[str, float]:
    """Accuracies in percent.

    Returns:
        {section: weighted accuracy, `<section>_lower` and `<section>_upper`: Wilson interval of its pairs without
        weights, `average`: plain mean of the four sections where all are there, `accuracy`: of all pairs alike,
        `ties`: pairs of equal rewards, `subset/<name>`: accuracy of a subset}.

    Raises:
        DataError: no pair.
        NumericsError: a reward that is not finite.
    """
    if not pairs:
        raise DataError("there is no pair to score")
    for pair in pairs:
        rewards = (("the chosen response", pair.chosen), ("the rejected response", pair.rejected))
        require_finite(rewards, f"pair '{pair.id}': the reward")
    by_section: dict[str, dict[str, list[bool]]] = {}
    for pair in pairs:
        by_section.setdefault(pair.section, {}).setdefault(pair.subset, []).append(pair.right)
    scores: dict[str, float] = {}
    for section, subsets in by_section.items():
        weights = {name: REWARD_BENCH.get(section, {}).get(name, len(right)) for name, right in subsets.items()}
        weighted = sum(weights[name] * sum(right) / len(right) for name, right in subsets.items())
        scores[section] = 100 * weighted / sum(weights.values())
        every = [value for right in subsets.values() for value in right]
        interval = wilson_interval(sum(every), len(every))
        scores |= {f"{section}_lower": 100 * interval.lower, f"{section}_upper": 100 * interval.upper}
        scores |= {f"subset/{name}": 100 * sum(right) / len(right) for name, right in subsets.items()}
    if all(section in scores for section in SECTIONS):
        scores["average"] = sum(scores[section] for section in SECTIONS) / len(SECTIONS)
    scores["accuracy"] = 100 * sum(pair.right for pair in pairs) / len(pairs)
    scores["ties"] = float(sum(pair.chosen == pair.rejected for pair in pairs))
    return scores


Rows = Sequence[Mapping[str, Any]]
#: (rows with their prompts, a response for each, rows per forward pass) -> rewards
Score = Callable[[Rows, Sequence[str], int], Sequence[float]]


def check_independence(score: Score, rows: Rows, responses: Sequence[str]) -> float:
    """Refuses a reward model whose scores depend on the batch they are computed in, or on its padding.

    The same responses are scored one by one, and all together in another order, so that short ones are padded to the
    longest.

    Args:
        score: the reward model.
        rows, responses: a few prompts with responses of different lengths.

    Returns:
        The largest difference found.

    Raises:
        DataError: fewer than two responses.
        NumericsError: a score that is not finite, or one that depends on its batch; names the response.
    """
    if len(rows) < 2:
        raise DataError("at least two responses are needed to see whether scores depend on their batch")
    order = list(range(len(rows)))
    random.Random("independence").shuffle(order)
    alone = list(score(rows, responses, 1))
    shuffled = score([rows[i] for i in order], [responses[i] for i in order], len(order))
    together = dict(zip(order, shuffled, strict=True))
    finite = [value for value in (*alone, *shuffled) if value - value == 0]
    if len(finite) < 2 * len(rows):
        raise NumericsError("the reward model gives scores that are not finite; look at its weights and its dtype")
    spread = max(1.0, max(alone) - min(alone))
    worst = max(order, key=lambda i: abs(alone[i] - together[i]))
    difference = abs(alone[worst] - together[worst])
    if difference > TOLERANCE * spread:
        raise NumericsError(
            f"the reward model's scores depend on batch size or padding: response {worst + 1} has {alone[worst]:.4f} "
            f"alone and {together[worst]:.4f} in a batch of {len(rows)}. Check that the model masks padding and reads "
            "the last real token: its pad token must not be one that texts hold, and its config must name it"
        )
    return difference


# --- any pairs -----------------------------------------------------------------------------------------------------


def pairwise_accuracy(chosen: ArrayLike, rejected: ArrayLike) -> Interval:
    """Returns the share of pairs with chosen > rejected, strictly, with its Wilson interval; NaN without pairs.

    Args:
        chosen, rejected: [n] rewards.
    """
    margin = _margins(chosen, rejected)
    return wilson_interval(int((margin > 0).sum()), len(margin))


def calibration(chosen: ArrayLike, rejected: ArrayLike) -> dict[str, float]:
    """Returns the expected calibration error and Brier score of p = sigmoid(chosen - rejected).

    A pair has no natural first element, so the stated preference is scored: the confidence max(p, 1 - p) against
    whether the predicted winner is the chosen response; a tie counts half.

    Args:
        chosen, rejected: [n] rewards.

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
    edges = np.linspace(0.5, 1.0, BINS + 1)
    position = np.clip(np.searchsorted(edges, confidence, side="right") - 1, 0, BINS - 1)
    error = 0.0
    for rows in (position == b for b in range(BINS)):
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
