"""Credit-assignment fidelity: who is paid for which clause, and whether negative credit finds the mistakes."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.fidelity import (
    ScoredResponse,
    auc,
    boundary_scores,
    clause_rewards,
    fidelity,
    negative_credit,
)


def response(rewards, clauses, width=2):
    offsets = [(i * width, (i + 1) * width) for i in range(len(rewards))]
    return ScoredResponse(rewards, offsets, clauses)


def test_tokens_belong_to_the_clause_of_their_first_character():
    r = response([1.0, 2.0, 4.0, None], [(0, 3, 10.0), (3, 6, 20.0), (6, 8, 30.0)])
    learned, true = clause_rewards(r)
    assert learned.tolist()[:2] == [3.0, 4.0]  # the token at [2, 4) starts inside the first clause
    assert math.isnan(learned[2])
    assert true.tolist() == [10, 20, 30]


def test_knowing_only_the_total_earns_nothing_within_responses():
    good = response([2.0, 2.0], [(0, 2, 3.0), (2, 4, 1.0)])
    bad = response([-2.0, -2.0], [(0, 2, -1.0), (2, 4, -3.0)])
    result = fidelity([good, bad])
    assert result["pearson"] > 0.8
    assert math.isnan(result["within_pearson"])


def test_empty_sets_are_defined():
    assert math.isnan(fidelity([])["pearson"])
    assert math.isnan(fidelity([response([None, None], [(0, 4, 1.0)])])["within_pearson"])
    assert clause_rewards(ScoredResponse([1.0], [(0, 1)], []))[0].size == 0


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5)), min_size=3, max_size=12), st.floats(0.1, 9))
def test_correlations_do_not_depend_on_scale_and_shift(pairs, scale):
    clauses = [(2 * i, 2 * i + 2, true) for i, (_, true) in enumerate(pairs)]
    rewards = [round(r, 2) for r, _ in pairs]
    one = fidelity([response(rewards, clauses)])
    two = fidelity([response([r * scale + 1 for r in rewards], clauses)])
    if not math.isnan(one["pearson"]):
        assert two["pearson"] == pytest.approx(one["pearson"], abs=1e-6)
        assert two["spearman"] == pytest.approx(one["spearman"], abs=1e-9)


def test_boundaries_by_hand():
    score = boundary_scores([[0, 5, 9, 20]], [[0, 5, 10]])
    assert (score["precision"], score["recall"]) == (1 / 3, 1 / 2)
    assert score["f1"] == pytest.approx(0.4)
    assert boundary_scores([[0, 5, 9, 20]], [[0, 5, 10]], tolerance=1)["recall"] == 1
    assert boundary_scores([[0], []], [[0], []])["f1"] == 1
    assert boundary_scores([[0, 3]], [[0]])["f1"] == 0
    assert boundary_scores([[0]], [[0, 3]])["f1"] == 0


def test_a_tolerant_match_uses_each_boundary_once():
    assert boundary_scores([[4, 5, 6]], [[5]], tolerance=1)["precision"] == pytest.approx(1 / 3)
    assert np.isclose(boundary_scores([[4, 6]], [[5, 7]], tolerance=1)["f1"], 1)


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
