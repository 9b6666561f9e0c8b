"""Multiple choice by likelihood."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import DataError, NumericsError
from rlhf_core.evaluation.multiple_choice import ChoiceItem, choose, mc2, score_items, summarise_choices


def test_acc_and_acc_norm_differ_on_length():
    seen = []

    def scorer(contexts, continuations):
        seen.extend(zip(contexts, continuations, strict=True))
        table = {" no": -4.0, " absolutely": -6.0, " é": -1.0, " ab": -1.5}
        return [table[c] for c in continuations], [1] * len(continuations)

    items = [
        ChoiceItem("1", ("Q:",), ("no", "absolutely"), 1),
        ChoiceItem("2", ("a", "b"), ("é", "ab"), 0),
    ]
    results = score_items(items, scorer)
    assert [(r.right, r.right_norm) for r in results] == [(False, True), (True, False)]
    assert seen[2:] == [("a", " é"), ("b", " ab")]
    assert [r.right_norm for r in score_items(items, scorer, normalise="bytes")] == [True, True]
    summary = summarise_choices(items, results)
    assert (summary["acc"], summary["acc_norm"], summary["n"]) == (0.5, 0.5, 2)
    assert summary["acc_se"] == pytest.approx(0.5)
    assert math.isnan(summarise_choices([], score_items([], scorer))["acc"])


def test_first_index_wins_ties_and_nan_stops():
    assert choose([-1, -1]) == 0
    with pytest.raises(NumericsError):
        choose([math.nan, 0])


def test_truthfulqa():
    assert mc2(np.log([0.1, 0.2, 0.1]), [True, True, False]) == pytest.approx(0.75)
    assert mc2([-5000.0, -5001.0], [True, False]) == pytest.approx(1 / (1 + math.exp(-1)))
    assert math.isnan(mc2([], []))
    with pytest.raises(DataError):
        mc2([1.0], [])


@given(st.lists(st.tuples(st.floats(-300, 0), st.booleans()), min_size=1, max_size=10))
def test_mc2_equals_the_naive_formula_and_complements(pairs):
    values, labels = zip(*pairs, strict=True)
    p = np.exp(np.array(values))
    if p.sum() > 0:
        assert mc2(values, labels) == pytest.approx(p[np.array(labels)].sum() / p.sum(), abs=1e-9)
    assert mc2(values, labels) + mc2(values, [not x for x in labels]) == pytest.approx(1)


def test_bad_items_are_named():
    scorer = lambda c, s: ([0.0] * len(c), [1] * len(c))  # noqa: E731
    with pytest.raises(DataError, match="row 1, field 'gold'"):
        score_items([ChoiceItem("x", ("c",), ("a",), 1)], scorer)
    with pytest.raises(DataError, match="contexts"):
        score_items([ChoiceItem("x", ("c", "d"), ("a", "b", "c"), 1)], scorer)
    with pytest.raises(DataError, match="returned 0 scores"):
        score_items([ChoiceItem("x", ("c",), ("a", "b"), 1)], lambda c, s: ([], []))
