"""Credit-assignment fidelity: who is paid for which clause."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.evaluation.fidelity import ScoredResponse, boundary_scores, clause_rewards, fidelity


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
