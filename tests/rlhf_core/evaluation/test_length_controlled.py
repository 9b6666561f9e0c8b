"""The length-controlled win rate against a naive reference, and the files of its inputs."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from rlhf_core.errors import DataError
from rlhf_core.evaluation.length_controlled import (
    difficulty_of_calibration_rows,
    fit_difficulty,
    length_controlled_win_rate,
    make_calibration_rows,
    official_index,
    read_calibration_rows,
)


def world(n=240, effect=1.2, quality=0.2, seed=0, spread=150):
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(size=n)
    len_base = rng.integers(300, 2000, size=n)
    len_model = len_base + rng.normal(100, spread, size=n).astype(int)
    delta = (len_base - len_model) / np.std(len_base - len_model, ddof=1)
    p = 1 / (1 + np.exp(-(-effect * np.tanh(delta) + 0.8 * difficulty + quality + rng.normal(size=n) * 0.5)))
    return 1 + p, len_model, len_base, difficulty


def calibration(n=240, seed=1, effect=1.5):
    rng = np.random.default_rng(seed)
    parts = []
    for shift in (1.0, -1.0):
        delta = -shift + rng.normal(size=n) * 0.3
        p = 1 / (1 + np.exp(effect * np.tanh(delta)))
        parts.append(
            pd.DataFrame(
                {
                    "preference": p,
                    "index": np.arange(n),
                    "std_delta_len": delta,
                    "instruction_difficulty": rng.normal(size=n),
                    "not_gamed_baseline": False,
                    "model": "gamed",
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def reference(preference, len_model, len_base, difficulty, gamed, weight=0.1):
    """The published procedure written out as loops."""
    delta = len_base - len_model
    delta = delta / np.std(delta, ddof=1)
    rows = []
    for _, row in gamed.iterrows() if gamed is not None else []:
        rows.append((np.tanh(row.std_delta_len), row.instruction_difficulty, 0.0, row.preference, weight))
    for d, h, p in zip(delta, difficulty, preference, strict=True):
        rows.append((np.tanh(d), h, 1.0, p - 1, 1.0))
    table = np.array([r for r in rows if not math.isnan(r[3])])
    x, p, w = table[:, :3], table[:, 3], table[:, 4]
    x2, y2 = np.vstack([x, x]), np.r_[np.ones(len(p)), np.zeros(len(p))].astype(int)
    p2, w2, group = np.r_[p, 1 - p], np.r_[w, w], np.r_[np.arange(len(p)), np.arange(len(p))]
    losses = np.zeros((5, 10))
    strengths = np.logspace(-4, 4, 10)
    for fold, (train, test) in enumerate(GroupKFold(5).split(x2, y2, group)):
        state = np.random.RandomState(123)
        for j, c in enumerate(strengths):
            fit = LogisticRegression(C=c, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=state)
            fit.fit(x2[train], y2[train], sample_weight=(p2 * w2)[train])
            q = np.clip(fit.predict_proba(x2[test])[:, 1], 1e-15, 1 - 1e-15)
            target = np.where(y2[test] == 1, p2[test], 1 - p2[test])
            losses[fold, j] = np.mean(-w2[test] * (target * np.log(q) + (1 - target) * np.log(1 - q)))
    best = strengths[losses.mean(0).argmin()]
    fit = LogisticRegression(C=best, l1_ratio=1.0, solver="liblinear", fit_intercept=False, random_state=123)
    fit.fit(x2, y2, sample_weight=p2 * w2)
    still = np.column_stack([np.zeros(len(difficulty)), difficulty, np.ones(len(difficulty))])
    predicted = fit.predict_proba(still)[:, 1]
    return predicted.mean() * 100


@pytest.mark.parametrize("with_gamed", [True, False])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_fit_equals_the_procedure_written_out(with_gamed, seed):
    preference, len_model, len_base, difficulty = world(seed=seed)
    preference[5] = np.nan
    gamed = calibration(seed=seed) if with_gamed else None
    if gamed is not None:
        gamed.loc[3, "preference"] = np.nan
    ids = range(len(difficulty))
    rate = length_controlled_win_rate(ids, preference, len_model, len_base, dict(enumerate(difficulty)), gamed)
    assert rate == pytest.approx(reference(preference, len_model, len_base, difficulty, gamed), abs=1e-9)


def test_the_official_file_is_read(tmp_path):
    gamed = tmp_path / "df_gamed.csv"
    with pytest.raises(DataError, match="cannot be read"):
        read_calibration_rows(gamed)
    calibration(12).to_csv(gamed, index=False)
    rows = read_calibration_rows(gamed)
    own = calibration(12)["instruction_difficulty"][:12]
    assert (len(rows), difficulty_of_calibration_rows(rows)) == (24, pytest.approx(dict(enumerate(own))))
    assert [official_index(i) for i in (5, "alpacaeval-017", "804")] == [5, 17, 804]
    with pytest.raises(DataError):
        official_index("no number")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("instruction_difficulty", "hard", "row 1, field 'instruction_difficulty': hard is not a finite number"),
        ("std_delta_len", None, "row 1, field 'std_delta_len': nan is not a finite number"),
        ("preference", 1.7, "row 1, field 'preference': 1.7 is not in \\[0, 1\\]"),
        ("not_gamed_baseline", "no", "row 1, field 'not_gamed_baseline': no is not a truth value"),
    ],
)
def test_a_value_that_its_column_cannot_have_is_refused(tmp_path, column, value, message):
    calibration(12).assign(**{column: value}).to_csv(tmp_path / "gamed.csv", index=False)
    with pytest.raises(DataError, match=message):
        read_calibration_rows(tmp_path / "gamed.csv")
    calibration(12).drop(columns=column).to_csv(tmp_path / "gamed.csv", index=False)
    with pytest.raises(DataError, match=f"missing columns {column}"):
        read_calibration_rows(tmp_path / "gamed.csv")


def test_inputs_that_do_not_fit_are_refused():
    easy = dict.fromkeys("abcdef", 0.0)
    with pytest.raises(DataError, match="at least 5"):
        length_controlled_win_rate("abc", [1, 2, 1], [1, 2, 3], [1, 2, 4], easy)
    with pytest.raises(DataError, match=r"no difficulty for 1 of 6 instructions, e\.g\. 'g'"):
        length_controlled_win_rate("abcdeg", [1] * 6, [1] * 6, [2] * 6, easy)


@pytest.mark.parametrize(("preference", "rate"), [(1.0, 0.0), (2.0, 100.0), (1.5, 50.0)])
def test_one_outcome_everywhere_is_its_rate(preference, rate):
    """A model that lost every game had 50 %: no coefficients fit such games, and zeros are a draw."""
    n = 40
    draw = np.random.default_rng(3)
    lengths, difficulty = draw.integers(20, 90, size=(2, n)), draw.normal(size=n)
    found = length_controlled_win_rate(range(n), np.full(n, preference), *lengths, dict(enumerate(difficulty)))
    assert found == pytest.approx(rate)


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
    assert 0 < length_controlled_win_rate(ids[:n], preference[:n], own[:n], base[:n], fitted, made) < 100
