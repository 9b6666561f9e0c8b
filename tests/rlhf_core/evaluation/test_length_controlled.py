"""The length-controlled win rate against a naive reference, and the files of its inputs."""

import math

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from rlhf_core.errors import DataError
from rlhf_core.evaluation.alpaca_calibration import (
    check_calibration_rows,
    fit_difficulty,
    make_calibration_rows,
    official_index,
    read_calibration_rows,
)
from rlhf_core.evaluation.length_controlled import length_controlled_win_rate


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
    return predicted.mean() * 100, best, fit.coef_[0], pd.Series(predicted).sem() * 100


@pytest.mark.parametrize("with_gamed", [True, False])
@pytest.mark.parametrize("seed", [0, 3])
def test_the_fit_equals_the_procedure_written_out(with_gamed, seed):
    preference, len_model, len_base, difficulty = world(seed=seed)
    preference[5] = np.nan
    gamed = calibration(seed=seed) if with_gamed else None
    if gamed is not None:
        gamed.loc[3, "preference"] = np.nan
    rate, best, coefficients, error = reference(preference, len_model, len_base, difficulty, gamed)
    result = length_controlled_win_rate(preference, len_model, len_base, difficulty, gamed)
    assert result.lc_win_rate == pytest.approx(rate, abs=1e-9)
    assert result.lc_standard_error == pytest.approx(error, abs=1e-9)
    assert pytest.approx(best) == result.C
    assert list(result.coefficients.values()) == pytest.approx(list(coefficients), abs=1e-9)
    assert (result.n, result.n_invalid) == (239, 1)


def test_length_control_takes_away_what_length_won():
    len_base = world(n=600)[2]
    longer = len_base + 300 + (np.arange(600) % 7) * 40
    delta = (len_base - longer) / np.std(len_base - longer, ddof=1)
    preference = 1 + 1 / (1 + np.exp(2.0 * np.tanh(delta)))
    fair = length_controlled_win_rate(preference, longer, len_base, np.zeros(600), calibration(600, effect=2.0))
    assert fair.win_rate > 80
    assert fair.lc_win_rate < 60
    assert fair.coefficients["tanh_std_delta_len"] < -1.5


def test_no_length_difference_is_defined():
    n = 20
    flat = length_controlled_win_rate(np.full(n, 1.5), np.ones(n), np.ones(n), np.zeros(n))
    assert flat.lc_win_rate == pytest.approx(50.0, abs=0.1)


def test_difficulties_are_looked_up_by_instruction_id():
    preference, len_model, len_base, difficulty = world(60)
    ids = [f"i{k}" for k in range(60)]
    by_id = dict(zip(reversed(ids), reversed(difficulty.tolist()), strict=True))
    direct = length_controlled_win_rate(preference, len_model, len_base, difficulty)
    keyed = length_controlled_win_rate(preference, len_model, len_base, by_id, instruction_ids=ids)
    assert keyed == pytest.approx(direct) if isinstance(keyed, float) else keyed.lc_win_rate == direct.lc_win_rate
    series = pd.Series(by_id)
    assert length_controlled_win_rate(
        preference, len_model, len_base, series, instruction_ids=ids
    ).lc_win_rate == pytest.approx(direct.lc_win_rate)
    del by_id["i7"]
    with pytest.raises(DataError, match=r"no difficulty for 1 of 60 instructions, e\.g\. 'i7'"):
        length_controlled_win_rate(preference, len_model, len_base, by_id, instruction_ids=ids)
    with pytest.raises(DataError, match="no instruction_ids"):
        length_controlled_win_rate(preference, len_model, len_base, by_id)


def test_difficulties_can_come_from_the_calibration_rows():
    preference, len_model, len_base, _ = world(50)
    gamed = calibration(60)
    ids = list(range(50))
    own = gamed.drop_duplicates("index").set_index("index")["instruction_difficulty"]
    given_rows = length_controlled_win_rate(preference, len_model, len_base, None, gamed, instruction_ids=ids)
    by_hand = length_controlled_win_rate(preference, len_model, len_base, own[ids].to_numpy(), gamed)
    assert given_rows.lc_win_rate == by_hand.lc_win_rate
    with pytest.raises(DataError, match="calibration rows that hold them"):
        length_controlled_win_rate(preference, len_model, len_base, None)
    with pytest.raises(DataError, match="not a truth value"):
        check_calibration_rows(gamed.assign(not_gamed_baseline="False"))


def test_inputs_that_do_not_fit_are_refused():
    with pytest.raises(DataError, match="3 preferences, 3 lengths, 2 difficulties"):
        length_controlled_win_rate([1, 2, 1], [1, 2, 3], [1, 2, 4], [0, 0])
    with pytest.raises(DataError, match="at least 5"):
        length_controlled_win_rate([1, 2, 1], [1, 2, 3], [1, 2, 4], [0, 0, 0])
    with pytest.raises(DataError, match="finite"):
        length_controlled_win_rate([1] * 6, [1] * 6, [2] * 6, [float("nan")] * 6)
    with pytest.raises(DataError, match=r"outside \[0, 1\]"):
        check_calibration_rows(calibration(10).assign(preference=1.7))
    with pytest.raises(DataError, match="missing columns not_gamed_baseline"):
        check_calibration_rows(calibration(10).drop(columns="not_gamed_baseline"))


def test_the_official_file_is_read(tmp_path):
    gamed = tmp_path / "df_gamed.csv"
    with pytest.raises(DataError, match="cannot be read"):
        read_calibration_rows(gamed)
    calibration(12).to_csv(gamed, index=False)
    assert len(read_calibration_rows(gamed)) == 24
    calibration(12).assign(instruction_difficulty="hard").to_csv(gamed, index=False)
    with pytest.raises(DataError, match="row 1, field 'instruction_difficulty': not a finite number"):
        read_calibration_rows(gamed)
    assert [official_index(i) for i in (5, "alpacaeval-017", "804")] == [5, 17, 804]
    with pytest.raises(DataError):
        official_index("no number")


@pytest.mark.parametrize(("preference", "rate"), [(1.0, 0.0), (2.0, 100.0), (1.5, 50.0)])
def test_one_outcome_everywhere_is_its_rate(preference, rate):
    """A model that lost every game had 50 %: no coefficients fit such games, and zeros are a draw."""
    n = 40
    draw = np.random.default_rng(3)
    lengths, difficulty = draw.integers(20, 90, size=(2, n)), draw.normal(size=n)
    found = length_controlled_win_rate(np.full(n, preference), *lengths, difficulty)
    assert (found.lc_win_rate, found.win_rate) == pytest.approx((rate, rate))
    assert found.lc_standard_error == pytest.approx(0.0, abs=1e-9)


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
