"""Inputs of the length-controlled win rate: lengths, difficulties of instructions, calibration rows.

The official file is `df_gamed.csv` (preference in [0, 1], index, std_delta_len, instruction_difficulty,
not_gamed_baseline, model) of the AlpacaEval data set; rows of the same form can be made from any verbose and concise
variants of a baseline, and difficulties from a joint fit over several models.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from rlhf_core.errors import DataError
from rlhf_core.evaluation.benchmark_scores import clean_preferences

Floats = NDArray[np.float64]

CALIBRATION_COLUMNS = ("preference", "index", "std_delta_len", "instruction_difficulty", "not_gamed_baseline")
_OFFICIAL_ID = re.compile(r"(?:^|\D)0*([0-9]+)$")


def official_index(instruction_id: Hashable) -> int:
    """Returns the position in the official 805 instructions from an id such as `alpacaeval-017` (or 17)."""
    if isinstance(instruction_id, int | np.integer):
        return int(instruction_id)
    match = _OFFICIAL_ID.search(str(instruction_id))
    if match is None:
        raise DataError(f"instruction id '{instruction_id}' does not end in a number", field="index")
    return int(match.group(1))


def read_calibration_rows(path: str | Path) -> pd.DataFrame:
    """Reads the official `df_gamed.csv`; see `check_calibration_rows`."""
    try:
        rows = pd.read_csv(path)
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(f"cannot be read as CSV ({error})", file=str(path)) from error
    return check_calibration_rows(rows, str(path))


def check_calibration_rows(rows: pd.DataFrame, source: str = "calibration rows") -> pd.DataFrame:
    """Returns calibration rows (verbose and concise variants of the baseline, judged against it), validated.

    Columns: preference in [0, 1] (as in the official file, already shifted down by one), index,
    std_delta_len, instruction_difficulty, not_gamed_baseline (False); others are ignored.
    """
    missing = [column for column in CALIBRATION_COLUMNS if column not in rows.columns]
    if missing:
        raise DataError(f"missing columns {', '.join(missing)}", file=source)
    for column in ("std_delta_len", "instruction_difficulty"):
        _require_finite(rows, column, source)
    preference = rows["preference"].astype(float)
    outside = preference.notna() & ~preference.between(0.0, 1.0)
    if bool(outside.any()):
        raise DataError(
            f"preference {preference[outside].iloc[0]:g} outside [0, 1]",
            file=source,
            row=int(np.flatnonzero(outside.to_numpy())[0]) + 1,
            field="preference",
            remedy="Calibration rows hold preferences shifted to [0, 1]; subtract 1",
        )
    marks = rows["not_gamed_baseline"]
    if not marks.isin([True, False]).all():
        raise DataError("not a truth value", file=source, field="not_gamed_baseline", remedy="True or False")
    return rows.loc[:, list(CALIBRATION_COLUMNS)].reset_index(drop=True)


def difficulty_of_calibration_rows(rows: pd.DataFrame) -> dict[Any, float]:
    """Returns instruction id -> difficulty, from each instruction's first row (as the official metric)."""
    first = check_calibration_rows(rows).drop_duplicates("index")
    return dict(zip(first["index"].tolist(), first["instruction_difficulty"].astype(float), strict=True))


def standardised_length_difference(len_model: ArrayLike, len_baseline: ArrayLike) -> Floats:
    """Returns (len_baseline - len_model) / its standard deviation (ddof 1); all 0 if the difference is constant.

    Args:
        len_model, len_baseline: [n] lengths in characters.

    Raises:
        DataError: a length that is not finite, which would make every difference 0.
    """
    delta = np.asarray(len_baseline, dtype=float) - np.asarray(len_model, dtype=float)
    bad = np.flatnonzero(~np.isfinite(delta))
    if len(bad):
        raise DataError("a length is not a finite number", row=int(bad[0]) + 1, field="length")
    spread = float(delta.std(ddof=1)) if len(delta) > 1 else 0.0
    return delta / spread if spread > 0 else np.zeros_like(delta)


def make_calibration_rows(
    instruction_ids: Sequence[Hashable],
    preferences: ArrayLike,
    len_gamed: ArrayLike,
    len_baseline: ArrayLike,
    difficulty: Mapping[Any, float],
) -> pd.DataFrame:
    """Returns the calibration rows from one gamed baseline (verbose or concise) judged against the baseline.

    Concatenate the frames of several gamed baselines with `pandas.concat`.

    Args:
        instruction_ids: [n] ids, looked up in `difficulty`.
        preferences: [n] in [1, 2], 2 = the gamed variant wins.
        len_gamed, len_baseline: [n] characters.
        difficulty: instruction id -> difficulty.
    """
    rows = pd.DataFrame(
        {
            "preference": clean_preferences(preferences) - 1.0,
            "index": list(instruction_ids),
            "std_delta_len": standardised_length_difference(len_gamed, len_baseline),
            "instruction_difficulty": look_up_difficulty(instruction_ids, difficulty),
            "not_gamed_baseline": False,
        }
    )
    return check_calibration_rows(rows)


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
    if not len(model_of) == len(instruction_of) == len(y) == len(lengths_model) == len(lengths_baseline):
        raise DataError("model ids, instruction ids, preferences and lengths differ in number")
    length = np.zeros(len(y))
    for m in range(len(models)):
        rows = model_of == m
        length[rows] = np.tanh(standardised_length_difference(lengths_model[rows], lengths_baseline[rows]))
    keep = np.flatnonzero(~np.isnan(y))
    if not len(keep):
        raise DataError("no valid preference to fit difficulties from", field="preference")
    row = np.arange(len(keep))
    design = sparse.hstack(
        [
            sparse.csr_matrix((np.ones(len(keep)), (row, model_of[keep])), (len(keep), len(models))),
            sparse.csr_matrix((length[keep], (row, model_of[keep])), (len(keep), len(models))),
            sparse.csr_matrix((np.ones(len(keep)), (row, instruction_of[keep])), (len(keep), len(instructions))),
        ],
        format="csr",
    )
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


def _require_finite(frame: pd.DataFrame, column: str, source: str) -> None:
    values = pd.to_numeric(frame[column], errors="coerce").to_numpy(dtype=float)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise DataError("not a finite number", file=source, row=int(bad[0]) + 1, field=column)
