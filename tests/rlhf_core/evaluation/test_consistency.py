"""Selection of aspects: inconsistency against a naive count, ties, error rates, constants and the rules."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import DataError, RecipeError
from rlhf_core.evaluation.consistency import Pairs, SelectionRule, consistency, inconsistency

VALUES = st.lists(st.tuples(*[st.integers(-2, 2)] * 4), min_size=1, max_size=30)


@settings(max_examples=100, deadline=None)
@given(VALUES)
def test_inconsistency_is_the_share_of_decided_pairs_where_the_aspect_prefers_the_other(
    rows: list[tuple[int, int, int, int]],
) -> None:
    h_greedy, h_sampled, a_greedy, a_sampled = zip(*rows, strict=True)
    decided = [row for row in rows if row[0] != row[1]]
    apart = [1 for h1, h2, a1, a2 in decided if (h1 - h2) * (a1 - a2) < 0]
    found = inconsistency(Pairs(h_greedy, h_sampled), Pairs(a_greedy, a_sampled))
    assert found == pytest.approx(100 * len(apart) / len(decided)) if decided else math.isnan(found)


def win_rate(pairs: Pairs) -> float:
    found: float = consistency(pairs, pairs, rounds=1)["win_rate"]["estimate"]
    return found


def test_a_lower_error_rate_wins_in_both_measures() -> None:
    holistic = Pairs([1, 1, 1, 0], [0, 0, 0, 1])
    errors = Pairs([0.1, 0.1, 0.3, 0.2], [0.2, 0.2, 0.2, 0.1], higher_is_better=False)
    assert inconsistency(holistic, errors) == 25.0
    assert win_rate(errors) == 50.0
    assert win_rate(Pairs([0.1, 0.1, 0.3, 0.2], [0.2, 0.2, 0.2, 0.1])) == 50.0
    assert win_rate(Pairs([0.1, 0.1, 0.1], [0.2, 0.2, 0.2], higher_is_better=False)) == 100.0


def test_ties_of_the_aspect_count_as_consistent_and_ties_of_the_holistic_reward_are_dropped() -> None:
    found = consistency(Pairs([1, 1, 0, 0], [0, 0, 0, 1]), Pairs([5, 0, 0, 5], [5, 1, 9, 5]), rounds=20)
    assert (found["pairs"], found["ties"]) == (3, 2)
    assert found["inconsistency"]["estimate"] == pytest.approx(100 / 3)


def test_all_ties_leave_nothing_to_select_by() -> None:
    same = Pairs([1.0, 2.0], [1.0, 2.0])
    found = consistency(same, Pairs([0, 1], [1, 0]), rounds=10)
    assert found["inconsistency"]["estimate"] is None
    assert win_rate(same) == 50.0
    with pytest.raises(DataError, match="ties on every pair"):
        SelectionRule().choose({"factuality": math.nan})


def test_the_lowest_or_all_below_the_cutoff_are_chosen() -> None:
    found = {"relevance": 40.0, "factuality": 20.0, "length": 35.0}
    assert SelectionRule().choose(found) == ["factuality"]
    assert SelectionRule("below", 36.0).choose(found) == ["factuality", "length"]
    assert SelectionRule("below", 10.0).choose(found) == []


def test_a_constant_aspect_is_never_chosen() -> None:
    assert Pairs([1, 1], [1, 1]).never_prefers
    assert SelectionRule().choose({"constant": 0.0, "factuality": 20.0}, ["constant"]) == ["factuality"]
    with pytest.raises(DataError, match="every aspect is constant"):
        SelectionRule().choose({"constant": 0.0}, ["constant"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "highest"}, "known: lowest, below"),
        ({"kind": "below"}, "needs one"),
        ({"cutoff": 40.0}, "needs one"),
        ({"kind": "below", "cutoff": 0.4 - 0.4}, "cutoff is 0.0; it must be above 0 and at most 100"),
    ],
)
def test_rules_that_mean_nothing_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        SelectionRule(**options)  # type: ignore[arg-type]
