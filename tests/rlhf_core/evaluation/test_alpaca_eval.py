"""Difficulties of instructions that one joint fit finds."""

import numpy as np
import pytest

from rlhf_core.evaluation.alpaca_calibration import make_calibration_rows
from rlhf_core.evaluation.alpaca_eval import fit_difficulty
from rlhf_core.evaluation.length_controlled import length_controlled_win_rate


def test_joint_difficulties_recover_the_true_ones_and_serve_the_metric():
    rng = np.random.default_rng(0)
    n, models = 80, 12
    gamma = rng.normal(size=n)
    rows = []
    for m in range(models):
        theta = rng.normal() * 0.5
        base = rng.integers(200, 900, size=n)
        own = base + rng.normal(0, 200, size=n).astype(int)
        delta = (base - own) / np.std(base - own, ddof=1)
        p = 1 / (1 + np.exp(-(theta - 0.8 * np.tanh(delta) + gamma)))
        rows += [(f"m{m}", f"i{k}", 1 + p[k], own[k], base[k]) for k in range(n)]
    names, ids, preference, own, base = (list(c) for c in zip(*rows, strict=True))
    fitted = fit_difficulty(names, ids, preference, own, base)
    assert np.corrcoef([fitted[f"i{k}"] for k in range(n)], gamma)[0, 1] > 0.95
    assert sum(fitted.values()) == pytest.approx(0, abs=1e-9)
    made = make_calibration_rows(ids[:n], preference[:n], own[:n], base[:n], fitted)
    assert made["preference"].between(0, 1).all()
    result = length_controlled_win_rate(preference[:n], own[:n], base[:n], fitted, made, instruction_ids=ids[:n])
    assert 0 < result.lc_win_rate < 100
    assert result.coefficients["instruction_difficulty"] > 0.5
