"""Difficulty of AlpacaEval 2.0's instructions, fitted jointly over several models.

The length-controlled win rate is in `length_controlled.py`, its other inputs in `alpaca_calibration.py`, the plain win
rate in `win_rates.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.linear_model import LogisticRegression

from rlhf_core.errors import DataError
from rlhf_core.evaluation.alpaca_calibration import standardised_length_difference
from rlhf_core.evaluation.win_rates import clean_preferences


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
