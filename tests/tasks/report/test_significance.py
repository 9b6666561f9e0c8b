"""A difference is what the tests find, never the mean alone."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.report.measurements import Measurement
from tasks.report.significance import Comparison, compare, corrected_p


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
    assert found.significant(found.p)
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
    assert not found.significant(found.p)


def test_one_training_run_decides_nothing() -> None:
    assert not Comparison(5.0, None, 1e-9, True, seeds=1).significant(1e-9)


def test_no_shared_seed_is_no_comparison() -> None:
    assert compare({0: run(1.0)}, {1: run(2.0)}) is None


def test_p_values_are_corrected_for_the_number_of_tested_cells() -> None:
    tested = [Comparison(5.0, None, p, True, seeds=2) for p in (0.02, 0.03, 0.9)]
    untested = Comparison(5.0, None, None, True, seeds=2)
    corrected = corrected_p([tested[0], untested, *tested[1:]])
    assert corrected == pytest.approx([0.06, None, 0.06, 0.9])
    assert not tested[0].significant(corrected[0])
    assert tested[0].significant(corrected_p([tested[0], untested])[0]), "what was not tested does not count"
    assert not untested.significant(None)
