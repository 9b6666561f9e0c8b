"""Length-controlled win rate of AlpacaEval 2.0, with its calibration rows and the difficulties of instructions.

Preferences are in [1, 2]; 2 means that the model beats the baseline. Sources: Dubois et al. 2024,
"Length-Controlled AlpacaEval", and the published metric `length_controlled_v1`, whose settings are kept:
features in this order `tanh(std_delta_len)`, `instruction_difficulty`, `not_gamed_baseline`; no intercept;
L1 penalty with liblinear, random state 123; ten C in logspace(-4, 4); GroupKFold(5) over rows; weighted
log-loss against the soft targets.

Calibration rows are verbose and concise ("gamed") variants of the baseline, judged against it: preference in [0, 1],
index, std_delta_len, instruction_difficulty, not_gamed_baseline (False). They are the official file `df_gamed.csv`, or
made of any such variants, with difficulties from a joint fit over several models.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import sklearn
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import make_scorer
from sklearn.model_selection import GroupKFold

from rlhf_core.errors import DataError
from rlhf_core.evaluation.benchmark_scores import clean_preferences

Floats = NDArray[np.float64]

CALIBRATION_COLUMNS = ("preference", "index", "std_delta_len", "instruction_difficulty", "not_gamed_baseline")
N_SPLITS = 5
#: Weight of each calibration row; the model's rows weigh 1.
CALIBRATION_WEIGHT = 0.1
_OFFICIAL_ID = re.compile(r"(?:^|\D)0*([0-9]+)$")


def length_controlled_win_rate(
    instruction_ids: Sequence[Hashable],
    preferences: ArrayLike,
    len_model: ArrayLike,
    len_baseline: ArrayLike,
    difficulty: Mapping[Any, float],
    calibration_rows: pd.DataFrame | None = None,
) -> float:
    """Returns the length-controlled win rate in percent.

    As in the official metric, rows without a valid preference are left out of the fit only: their lengths
    count in the standard deviation and their instruction in the mean prediction. Where every preference is 1, or every
    one 2, nothing can be fitted and the rate is 0 or 100.

    Args:
        instruction_ids: [n].
        preferences: [n] in [1, 2], 2 = model wins.
        len_model, len_baseline: [n] output lengths in characters.
        difficulty: instruction id -> difficulty.
        calibration_rows: of `read_calibration_rows` or `make_calibration_rows`, or None.

    Raises:
        DataError: an instruction without a difficulty, or fewer than 5 valid rows to fit.
    """
    hardness = look_up_difficulty(instruction_ids, difficulty)
    delta = standardised_length_difference(len_model, len_baseline)
    n = len(delta)
    design = np.column_stack([np.tanh(delta), hardness, np.ones(n)])
    x, y, weight = design, clean_preferences(preferences) - 1.0, np.ones(n)
    if calibration_rows is not None:
        extra = _calibration_design(calibration_rows)
        x, y, weight = (np.concatenate([a, b]) for a, b in zip(extra, (x, y, weight), strict=True))
    keep = ~np.isnan(y)
    if keep.sum() < N_SPLITS:
        raise DataError(f"{int(keep.sum())} rows with a valid preference; at least {N_SPLITS} are needed")
    first = float(y[keep][0])
    if first in (0.0, 1.0) and (y[keep] == first).all():
        # no coefficients fit such preferences: liblinear leaves all at 0, which would be a win rate of 50 %
        return first * 100.0
    model = _fit_with_chosen_c(x[keep], y[keep], weight[keep])
    return float(model.predict_proba(design * np.array([0.0, 1.0, 1.0]))[:, 1].mean() * 100.0)


def _calibration_design(rows: pd.DataFrame) -> tuple[Floats, Floats, Floats]:
    """Returns the design, targets and weights of the calibration rows; rows marked not gamed weigh 1 (official)."""
    own = rows["not_gamed_baseline"].to_numpy(dtype=float)
    delta, hardness = (rows[name].to_numpy(dtype=float) for name in ("std_delta_len", "instruction_difficulty"))
    weights = own + CALIBRATION_WEIGHT * (1.0 - own)
    return np.column_stack([np.tanh(delta), hardness, own]), rows["preference"].to_numpy(dtype=float), weights


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


# --- calibration rows ----------------------------------------------------------------------------------------------


def official_index(instruction_id: Hashable) -> int:
    """Returns the position in the official 805 instructions from an id such as `alpacaeval-017` (or 17)."""
    match = _OFFICIAL_ID.search(str(instruction_id))
    if match is None:
        raise DataError(f"instruction id '{instruction_id}' does not end in a number", field="index")
    return int(match.group(1))


def read_calibration_rows(path: str | Path) -> pd.DataFrame:
    """Reads the official `df_gamed.csv`; columns that are not `CALIBRATION_COLUMNS` are left out.

    Raises:
        DataError: a file that is not CSV, a missing column, or a value that its column cannot have.
    """
    source = str(path)
    try:
        rows = pd.read_csv(path)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"cannot be read as CSV ({error})", file=source) from error
    missing = [column for column in CALIBRATION_COLUMNS if column not in rows.columns]
    if missing:
        raise DataError(f"missing columns {', '.join(missing)}", file=source)
    numbers = rows[["preference", "std_delta_len", "instruction_difficulty"]].apply(pd.to_numeric, errors="coerce")
    preference = numbers["preference"]
    for column, wrong, problem in (
        ("std_delta_len", ~np.isfinite(numbers["std_delta_len"]), "not a finite number"),
        ("instruction_difficulty", ~np.isfinite(numbers["instruction_difficulty"]), "not a finite number"),
        ("preference", rows["preference"].notna() & ~preference.between(0, 1), "not in [0, 1]: subtract 1 from [1, 2]"),
        ("not_gamed_baseline", ~rows["not_gamed_baseline"].isin([True, False]), "not a truth value, True or False"),
    ):
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise DataError(f"{rows[column].iloc[row]!s} is {problem}", file=source, row=row + 1, field=column)
    return rows.loc[:, list(CALIBRATION_COLUMNS)].reset_index(drop=True)


def difficulty_of_calibration_rows(rows: pd.DataFrame) -> dict[Any, float]:
    """Returns instruction id -> difficulty, from each instruction's first row (as the official metric)."""
    first = rows.drop_duplicates("index")
    return dict(zip(first["index"].tolist(), first["instruction_difficulty"].astype(float), strict=True))


def make_calibration_rows(
    instruction_ids: Sequence[Hashable],
    preferences: ArrayLike,
    len_gamed: ArrayLike,
    len_baseline: ArrayLike,
    difficulty: Mapping[Any, float],
) -> pd.DataFrame:
    """Returns the calibration rows from one gamed baseline (verbose or concise) judged against the baseline.

    Args:
        instruction_ids: [n] ids, looked up in `difficulty`.
        preferences: [n] in [1, 2], 2 = the gamed variant wins.
        len_gamed, len_baseline: [n] characters.
        difficulty: instruction id -> difficulty.
    """
    return pd.DataFrame(
        {
            "preference": clean_preferences(preferences) - 1.0,
            "index": list(instruction_ids),
            "std_delta_len": standardised_length_difference(len_gamed, len_baseline),
            "instruction_difficulty": look_up_difficulty(instruction_ids, difficulty),
            "not_gamed_baseline": False,
        }
    )


# --- lengths and difficulties --------------------------------------------------------------------------------------


def standardised_length_difference(len_model: ArrayLike, len_baseline: ArrayLike) -> Floats:
    """Returns [n] (len_baseline - len_model) / its standard deviation (ddof 1); all 0 if the difference is constant."""
    delta = np.asarray(len_baseline, dtype=float) - np.asarray(len_model, dtype=float)
    spread = float(delta.std(ddof=1)) if len(delta) > 1 else 0.0
    return delta / spread if spread > 0 else np.zeros_like(delta)


def fit_difficulty(
    model_ids: Sequence[Hashable],
    instruction_ids: Sequence[Hashable],
    preferences: ArrayLike,
    len_model: ArrayLike,
    len_baseline: ArrayLike,
    *,
    C: float = 1.0,
) -> dict[Hashable, float]:
    """Returns the per-instruction difficulties from one joint fit over several models against one baseline.

    logit p = theta_model + phi_model * tanh(std_delta_len) + gamma_instruction, soft targets, L2 penalty;
    gamma is centred over instructions. The length difference is standardised per model, as in the metric.
    A higher value means that models win the instruction more easily. Source: Dubois et al. 2024, section 4
    (gamma fitted first, jointly over models, with its coefficient fixed to 1); the L2 strength is this
    project's choice.

    Args:
        model_ids, instruction_ids: [n] one row per judged output.
        preferences: [n] in [1, 2]; invalid rows are left out.
        len_model, len_baseline: [n] characters.
        C: inverse L2 strength.

    Returns:
        instruction id -> difficulty, for every instruction in the rows (0 for one without valid rows).
    """
    models, model_of = np.unique(np.array([str(m) for m in model_ids]), return_inverse=True)
    instructions = list(dict.fromkeys(instruction_ids))
    position = {id_: i for i, id_ in enumerate(instructions)}
    instruction_of = np.array([position[id_] for id_ in instruction_ids], dtype=int)
    y = clean_preferences(preferences) - 1.0
    lengths_model, lengths_baseline = np.asarray(len_model, float), np.asarray(len_baseline, float)
    length = np.zeros(len(y))
    for m in range(len(models)):
        rows = model_of == m
        length[rows] = np.tanh(standardised_length_difference(lengths_model[rows], lengths_baseline[rows]))
    keep = np.flatnonzero(~np.isnan(y))
    if not len(keep):
        raise DataError("no valid preference to fit difficulties from", field="preference")

    def indicator(values: Floats, columns: NDArray[Any], width: int) -> Any:
        return sparse.csr_matrix((values, (np.arange(len(keep)), columns)), (len(keep), width))

    ones = np.ones(len(keep))
    parts = [
        indicator(ones, model_of[keep], len(models)),
        indicator(length[keep], model_of[keep], len(models)),
        indicator(ones, instruction_of[keep], len(instructions)),
    ]
    design = sparse.hstack(parts, format="csr")
    fit = LogisticRegression(C=C, fit_intercept=False, tol=1e-8, max_iter=10_000)
    fit.fit(
        sparse.vstack([design, design], format="csr"),
        np.repeat([1, 0], len(keep)),
        sample_weight=np.concatenate([y[keep], 1.0 - y[keep]]),
    )
    gamma = fit.coef_[0][2 * len(models) :]
    gamma = gamma - gamma.mean()
    return {id_: float(value) for id_, value in zip(instructions, gamma, strict=True)}


def look_up_difficulty(instruction_ids: Sequence[Hashable], difficulty: Mapping[Any, float]) -> Floats:
    """Returns the difficulty of each instruction id; DataError names the missing ones."""
    missing = [id_ for id_ in instruction_ids if id_ not in difficulty]
    if missing:
        shown = ", ".join(repr(id_) for id_ in missing[:5])
        raise DataError(
            f"no difficulty for {len(missing)} of {len(instruction_ids)} instructions, e.g. {shown}",
            field="instruction_difficulty",
            remedy="Give one for every instruction id (official files are keyed by the index 0 to 804)",
        )
    return np.array([float(difficulty[id_]) for id_ in instruction_ids])
