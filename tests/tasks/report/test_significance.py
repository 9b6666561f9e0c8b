"""Verdicts follow the tests, never the mean alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.report.measurements import Measurement
from tasks.report.significance import Comparison, compare, verdict


def run(value: float, prompts: dict[str, float] | None = None) -> Measurement:
    return Measurement(value, prompts or {})


def test_prompts_decide_where_there_are_any() -> None:
    generator = np.random.default_rng(0)
    hardness = generator.normal(size=200)
    main = {f"p{i}": float(hardness[i]) for i in range(200)}
    row = {f"p{i}": float(hardness[i] - 0.2 + 0.3 * generator.normal()) for i in range(200)}
    found = compare({0: run(40.0, row), 1: run(40.0, row)}, {0: run(45.0, main), 1: run(45.0, main)})
    assert found is not None
    assert found.p_prompts is not None
    assert found.p_prompts < 1e-6
    assert found.significant
    assert found.difference == pytest.approx(-5.0)


def test_a_prompt_counts_once_however_many_seeds() -> None:
    generator = np.random.default_rng(1)
    first = {f"p{i}": float(v) for i, v in enumerate(generator.normal(size=60))}
    one = compare({0: run(1.0, first)}, {0: run(0.5, dict.fromkeys(first, 0.0))})
    many = compare({s: run(1.0, first) for s in range(5)}, {s: run(0.5, dict.fromkeys(first, 0.0)) for s in range(5)})
    assert one is not None
    assert many is not None
    assert one.p_prompts == pytest.approx(many.p_prompts)


def test_seeds_that_disagree_leave_it_undecided() -> None:
    prompts, none = {f"p{i}": 1.0 + i % 2 for i in range(50)}, {f"p{i}": 0.0 for i in range(50)}
    found = compare({0: run(50.0, prompts), 1: run(40.0, prompts)}, {0: run(45.0, none), 1: run(44.0, none)})
    assert found is not None
    assert found.p_prompts is not None
    assert found.p_prompts < 0.05
    assert not found.same_sign
    assert verdict(30.0, 20.0, found) == "undecided"


def test_one_training_run_decides_nothing() -> None:
    assert not Comparison(5.0, None, 1e-9, True, seeds=1).significant


def test_no_shared_seed_is_no_comparison() -> None:
    assert compare({0: run(1.0)}, {1: run(2.0)}) is None


@pytest.mark.parametrize(
    ("published", "difference", "expected"),
    [(20.0, -3.0, "confirmed"), (20.0, 3.0, "contradicted"), (40.0, 3.0, "confirmed"), (40.0, -3.0, "contradicted")],
)
def test_the_sign_decides_when_significant(published: float, difference: float, expected: str) -> None:
    assert verdict(published, 30.0, Comparison(difference, 0.01, 0.001, True, seeds=2)) == expected


def test_a_paper_without_an_order_gets_no_verdict() -> None:
    sure = Comparison(5.0, 0.001, 0.001, True)
    assert verdict(30.0, 30.0, sure) is None
    assert verdict(None, 30.0, sure) is None


@given(
    st.floats(-100, 100, allow_nan=False),
    st.floats(-100, 100, allow_nan=False),
    st.floats(-50, 50, allow_nan=False),
    st.floats(0.05, 1),
)
def test_nothing_insignificant_is_ever_decided(a: float, b: float, difference: float, p: float) -> None:
    assert verdict(a, b, Comparison(difference, 0.0, p, True)) in (None, "undecided")
