"""Multiple choice by likelihood, as lm-evaluation-harness scores it, and TruthfulQA's MC1 and MC2."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.errors import DataError, NumericsError

Scorer = Callable[[Sequence[str], Sequence[str]], tuple[Sequence[float], Sequence[int]]]
"""(contexts, continuations) -> (summed log-probabilities in nats, continuation lengths in tokens)."""

Normalisation = Literal["characters", "bytes", "tokens"]


@dataclass(frozen=True)
class ChoiceItem:
    """A question with its choices.

    Attributes:
        id: identifier.
        contexts: one context for all choices, or one per choice (Winograd style, where the choice stands in
            the context and the continuation is the same).
        choices: continuations without the leading delimiter.
        gold: index of the right choice.
        labels: per choice whether it is true, for MC2; None when only `gold` is.
    """

    id: str
    contexts: tuple[str, ...]
    choices: tuple[str, ...]
    gold: int
    labels: tuple[bool, ...] | None = None


@dataclass(frozen=True)
class ChoiceResult:
    """Prediction for one item: indices by raw and by normalised likelihood, and log-probabilities."""

    id: str
    predicted: int
    predicted_norm: int
    right: bool
    right_norm: bool
    log_probabilities: tuple[float, ...]


def choose(log_probabilities: ArrayLike, lengths: ArrayLike | None = None) -> int:
    """Returns the index of the largest summed log-probability, divided by `lengths` if given; the first wins ties."""
    values = np.asarray(log_probabilities, dtype=np.float64)
    if np.isnan(values).any():
        raise NumericsError("a choice's log-probability is not a number")
    if lengths is not None:
        values = values / np.maximum(np.asarray(lengths, dtype=np.float64), 1.0)
    return int(np.argmax(values))


def choice_lengths(choices: Sequence[str], normalise: Normalisation, n_tokens: Sequence[int]) -> list[int]:
    """Lengths that acc_norm divides by: the harness's characters, or UTF-8 bytes, or tokens."""
    if normalise == "characters":
        return [len(choice) for choice in choices]
    if normalise == "bytes":
        return [len(choice.encode("utf-8")) for choice in choices]
    return list(n_tokens)


def mc2(log_probabilities: ArrayLike, labels: Sequence[bool]) -> float:
    """Returns the probability mass on the true answers, normalised over all answers (computed in log space).

    Args:
        log_probabilities: [n] summed log-probabilities.
        labels: [n] whether the answer is true.

    Returns:
        Value in [0, 1]; NaN without answers or when all have probability 0.
    """
    values = np.asarray(log_probabilities, dtype=np.float64)
    true = np.asarray(labels, dtype=bool)
    if values.shape != true.shape:
        raise DataError(f"{values.size} log-probabilities but {true.size} labels", field="labels")
    if not len(values) or values.max() == -math.inf:
        return math.nan
    weights = np.exp(values - values.max())
    return float(weights[true].sum() / weights.sum())


def score_items(
    items: Sequence[ChoiceItem],
    scorer: Scorer,
    *,
    normalise: Normalisation = "characters",
    delimiter: str = " ",
) -> list[ChoiceResult]:
    """Scores every choice of every item with one call of the scorer.

    Args:
        items: the questions.
        scorer: computes summed log-probabilities of continuations.
        normalise: what acc_norm divides by.
        delimiter: put before each continuation; not counted in its length (as in the harness).

    Raises:
        DataError: a gold index outside the choices, or contexts that fit neither way.
    """
    contexts: list[str] = []
    continuations: list[str] = []
    for row, item in enumerate(items, start=1):
        if not 0 <= item.gold < len(item.choices):
            raise DataError(f"item '{item.id}': gold index {item.gold} outside the choices", row=row, field="gold")
        if len(item.contexts) not in (1, len(item.choices)):
            raise DataError(f"item '{item.id}': one context, or one per choice", row=row, field="contexts")
        repeat = len(item.choices) if len(item.contexts) == 1 else 1
        contexts.extend(item.contexts * repeat)
        continuations.extend(delimiter + choice for choice in item.choices)
    sums, n_tokens = scorer(contexts, continuations) if contexts else ([], [])
    if len(sums) != len(contexts) or len(n_tokens) != len(contexts):
        raise DataError(f"the scorer returned {len(sums)} scores for {len(contexts)} continuations")
    results = []
    start = 0
    for item in items:
        stop = start + len(item.choices)
        values = tuple(float(v) for v in sums[start:stop])
        raw = choose(values)
        norm = choose(values, choice_lengths(item.choices, normalise, n_tokens[start:stop]))
        results.append(ChoiceResult(item.id, raw, norm, raw == item.gold, norm == item.gold, values))
        start = stop
    return results


def summarise_choices(items: Sequence[ChoiceItem], results: Sequence[ChoiceResult]) -> dict[str, float]:
    """Returns {acc, acc_norm, acc_se, acc_norm_se (ddof 1), mc2 (items with labels), n} in [0, 1]; NaN when empty."""
    raw = np.array([r.right for r in results], dtype=float)
    norm = np.array([r.right_norm for r in results], dtype=float)
    masses = [
        mc2(result.log_probabilities, item.labels)
        for item, result in zip(items, results, strict=True)
        if item.labels is not None
    ]
    return {
        "acc": _mean(raw),
        "acc_se": _error(raw),
        "acc_norm": _mean(norm),
        "acc_norm_se": _error(norm),
        "mc2": _mean(np.array(masses)),
        "n": len(results),
    }


def _mean(values: NDArray[np.float64]) -> float:
    return float(values.mean()) if len(values) else math.nan


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
