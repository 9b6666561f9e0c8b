"""Precision, recall and area under the curve of negative credit."""

from __future__ import annotations

import random

import pytest

from rlhf_core.evaluation.fidelity import auc, negative_credit


def naive_auc(credits: list[float], mistaken: list[bool]) -> float:
    """By comparing every mistaken token with every other."""
    wins = [
        1.0 if bad < good else 0.5 if bad == good else 0.0
        for bad, wrong in zip(credits, mistaken, strict=True)
        if wrong
        for good, also in zip(credits, mistaken, strict=True)
        if not also
    ]
    return sum(wins) / len(wins)


def test_the_area_is_that_of_comparing_all_pairs() -> None:
    rng = random.Random(0)
    for _ in range(20):
        credits = [rng.choice([-1.0, -0.5, 0.0, 0.5]) for _ in range(12)]
        mistaken = [True, False, *(rng.random() < 0.4 for _ in range(10))]
        assert auc(credits, mistaken) == pytest.approx(naive_auc(credits, mistaken))


def test_credit_that_blames_exactly_the_mistakes_is_perfect() -> None:
    found = negative_credit([[0.0, -0.1, 0.0], [-0.1, 0.0]], [[False, True, False], [True, False]])
    assert [found[name] for name in ("precision", "recall", "auc", "auc_within")] == [1.0, 1.0, 1.0, 1.0]
    assert (found["tokens"], found["mistaken"]) == (5.0, 2.0)


def test_what_has_no_denominator_is_left_out() -> None:
    assert set(negative_credit([[0.1, 0.2]], [[False, False]])) == {"tokens", "mistaken"}
    assert set(negative_credit([], [])) == {"tokens", "mistaken"}
