"""Length-controlled win rate of AlpacaEval 2.0.

Preferences are in [1, 2]; 2 means that the model beats the baseline. Sources: Dubois et al. 2024,
"Length-Controlled AlpacaEval", and the published metric `length_controlled_v1`, whose settings are kept:
features in this order `tanh(std_delta_len)`, `instruction_difficulty`, `not_gamed_baseline`; no intercept;
L1 penalty with liblinear, random state 123; ten C in logspace(-4, 4); GroupKFold(5) over rows; weighted
log-loss against the soft targets.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LogisticRegressionCV
from sklearn.metrics import make_scorer
from sklearn.model_selection import GroupKFold

from rlhf_core.errors import DataError
from rlhf_core.evaluation.alpaca_calibration import (
    check_calibration_rows,
    difficulty_of_calibration_rows,
    look_up_difficulty,
    standardised_length_difference,
)
from rlhf_core.evaluation.benchmark_scores import clean_preferences, win_rate

Floats = NDArray[np.float64]

FEATURES = ("tanh_std_delta_len", "instruction_difficulty", "not_gamed_baseline")
N_SPLITS = 5


@dataclass(frozen=True)
class LengthControlled:
    """A length-controlled win rate.

    Attributes:
        lc_win_rate: percent.
        win_rate, standard_error: the raw win rate, percent.
        lc_standard_error: of the mean prediction over instructions, in percent points, as the official metric has it;
            it says nothing of the fit.
        coefficients: feature -> coefficient.
        C: inverse regularisation strength chosen by cross-validation.
        n, n_invalid: rows with a valid preference, and without.
    """

    lc_win_rate: float
    win_rate: float
    standard_error: float
    lc_standard_error: float
    coefficients: dict[str, float]
    C: float
    n: int
    n_invalid: int


def length_controlled_win_rate(
    preferences: ArrayLike,
    len_model: ArrayLike,
    len_baseline: ArrayLike,
    difficulty: ArrayLike | Mapping[Any, float] | None,
    calibration_rows: pd.DataFrame | None = None,
    *,
    instruction_ids: Sequence[Hashable] | None = None,
    calibration_weight: float = 0.1,
) -> LengthControlled:
    """Returns the length-controlled win rate in percent.

    As in the official metric, rows without a valid preference are left out of the fit only: their lengths
    count in the standard deviation and their instruction in the mean prediction. Where every preference is 1, or every
    one 2, nothing can be fitted and the rate is 0 or 100.

    Args:
        preferences: [n] in [1, 2], 2 = model wins.
        len_model, len_baseline: [n] output lengths in characters.
        difficulty: [n] per-instruction difficulties aligned with the rows, or a mapping (dict or Series) by
            instruction id, which needs `instruction_ids`; None: the ids of the calibration rows (official).
        calibration_rows: rows of gamed baselines (`read_calibration_rows`, `make_calibration_rows`) or None.
        instruction_ids: [n] ids for the lookup.
        calibration_weight: weight of each calibration row; model rows weigh 1.

    Raises:
        DataError: lengths that do not match, missing difficulties, fewer than 5 valid rows to fit.
    """
    cleaned = clean_preferences(preferences)
    raw = win_rate(cleaned)
    n = len(cleaned)
    if difficulty is None:
        if calibration_rows is None:
            raise DataError("give difficulties, or calibration rows that hold them")
        difficulty = difficulty_of_calibration_rows(calibration_rows)
    if isinstance(difficulty, Mapping | pd.Series):
        if instruction_ids is None:
            raise DataError("difficulty is keyed by instruction id, but no instruction_ids were given")
        hardness = look_up_difficulty(instruction_ids, dict(difficulty.items()))
    else:
        hardness = np.asarray(difficulty, dtype=float)
    delta = standardised_length_difference(len_model, len_baseline)
    if not len(delta) == len(hardness) == n:
        counts = f"{n} preferences, {len(delta)} lengths, {len(hardness)} difficulties"
        raise DataError(f"{counts}: one of each per row is needed")
    if not (np.isfinite(hardness).all() and np.isfinite(delta).all()):
        raise DataError("lengths and difficulties must be finite numbers", field="instruction_difficulty")
    design = np.column_stack([np.tanh(delta), hardness, np.ones(n)])
    x, y, weight = design, cleaned - 1.0, np.ones(n)
    if calibration_rows is not None:
        extra = _calibration_design(calibration_rows, calibration_weight)
        x, y, weight = (np.concatenate([a, b]) for a, b in zip(extra, (x, y, weight), strict=True))
    keep = ~np.isnan(y)
    if keep.sum() < N_SPLITS:
        raise DataError(f"{int(keep.sum())} rows with a valid preference; at least {N_SPLITS} are needed")
    known: dict[str, Any] = {name: raw[name] for name in ("win_rate", "standard_error")}
    known |= {name: int(raw[name]) for name in ("n", "n_invalid")}
    first = float(y[keep][0])
    if first in (0.0, 1.0) and (y[keep] == first).all():
        # no coefficients fit such preferences: liblinear leaves all at 0, which would be a win rate of 50 %
        zeros = dict.fromkeys(FEATURES, 0.0)
        return LengthControlled(first * 100.0, lc_standard_error=0.0, coefficients=zeros, C=math.nan, **known)
    model = _fit_with_chosen_c(x[keep], y[keep], weight[keep])
    predicted = model.predict_proba(design * np.array([0.0, 1.0, 1.0]))[:, 1]
    return LengthControlled(
        float(predicted.mean() * 100.0),
        lc_standard_error=float(predicted.std(ddof=1) / np.sqrt(n) * 100.0),
        coefficients=dict(zip(FEATURES, model.coef_[0].tolist(), strict=True)),
        C=float(np.ravel(model.C_)[0]),
        **known,
    )


def _calibration_design(rows: pd.DataFrame, weight: float) -> tuple[Floats, Floats, Floats]:
    """Returns the design, targets and weights of the calibration rows; rows marked not gamed weigh 1 (official)."""
    checked = check_calibration_rows(rows)
    not_gamed = checked["not_gamed_baseline"].astype(bool).to_numpy(dtype=float)
    design = np.column_stack(
        [
            np.tanh(checked["std_delta_len"].to_numpy(dtype=float)),
            checked["instruction_difficulty"].to_numpy(dtype=float),
            not_gamed,
        ]
    )
    weights = not_gamed + weight * (1.0 - not_gamed)
    return design, checked["preference"].to_numpy(dtype=float), weights


def _soft_log_loss(
    label: NDArray[Any], probability: NDArray[Any], true_prob: NDArray[Any], true_weight: NDArray[Any]
) -> float:
    """Returns the mean weighted log-loss of P(y=1) against the soft target, on rows doubled as label 1 and label 0."""
    target = np.where(np.asarray(label) == 1, true_prob, 1.0 - np.asarray(true_prob))
    p = np.clip(probability, 1e-15, 1 - 1e-15)
    return float(-np.mean((target * np.log(p) + (1.0 - target) * np.log(1.0 - p)) * true_weight))


def _doubled(x: Floats, y: Floats, weight: Floats) -> tuple[Floats, NDArray[np.int64], Floats, Floats]:
    """Returns each soft row as two weighted rows: label 1 with p and label 0 with 1 - p."""
    true_prob = np.concatenate([y, 1.0 - y])
    labels = np.repeat(np.array([1, 0], dtype=np.int64), len(y))
    return np.concatenate([x, x]), labels, true_prob, np.concatenate([weight, weight])


def _fit_with_chosen_c(x: Floats, y: Floats, weight: Floats) -> LogisticRegressionCV:
    features, labels, true_prob, true_weight = _doubled(x, y, weight)
    groups = np.tile(np.arange(len(y)), 2)
    with sklearn.config_context(enable_metadata_routing=True):
        scorer = make_scorer(_soft_log_loss, response_method="predict_proba", greater_is_better=False)
        scorer = scorer.set_score_request(true_prob=True, true_weight=True)
        model = LogisticRegressionCV(
            Cs=10,
            cv=GroupKFold(N_SPLITS),
            scoring=scorer,
            solver="liblinear",
            l1_ratios=(1.0,),
            fit_intercept=False,
            random_state=123,
            use_legacy_attributes=False,
        ).set_fit_request(sample_weight=True)
        model.fit(
            features,
            labels,
            sample_weight=true_prob * true_weight,
            groups=groups,
            true_prob=true_prob,
            true_weight=true_weight,
        )
    return model
