"""A model that got worse is found, and noise is not, over several benchmarks at once."""

from __future__ import annotations

import numpy as np
import pytest

from rlhf_core.errors import DataError
from rlhf_core.evaluation.statistics import change


def scores(values: np.ndarray) -> dict[str, float]:
    return {str(i): float(v) for i, v in enumerate(values)}


def test_a_clear_loss_is_a_regression_and_its_mirror_an_improvement() -> None:
    before = np.random.default_rng(0).uniform(size=100)
    worse = change(scores(before), scores(before - 0.2 + 0.01 * np.arange(100) / 100), benchmarks=4)
    assert worse.verdict == "regression"
    assert worse.difference == pytest.approx(-0.195, abs=0.001)
    assert change(scores(before), scores(before + 0.2), benchmarks=4).verdict == "improvement"


def test_only_shared_items_are_compared() -> None:
    found = change({"a": 1.0, "b": 1.0, "old": 0.0}, {"a": 0.0, "b": 0.0, "new": 9.0}, benchmarks=1)
    assert (found.n, found.difference) == (2, -1.0)
    assert change({"a": 1.0}, {"b": 1.0}, benchmarks=1).verdict == "not comparable"


def test_a_score_that_is_not_finite_is_refused() -> None:
    with pytest.raises(DataError, match="not finite"):
        change({"a": float("nan"), "b": 1.0}, {"a": 1.0, "b": 1.0}, benchmarks=1)
