"""Soft preferences and their win rate. Preferences are in [1, 2]; 2 means that the model beats the baseline.

The length-controlled win rate is in `length_controlled.py`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


def clean_preferences(preferences: ArrayLike) -> Floats:
    """Returns preferences as float64, with NaN for invalid ones.

    0 is AlpacaEval's old mark of a draw and becomes 1.5; other values outside [1, 2] are invalid.

    Args:
        preferences: [n] numbers; None counts as NaN.
    """
    values = np.array([np.nan if p is None else p for p in np.asarray(preferences, dtype=object)], dtype=float)
    values = np.where(values == 0.0, 1.5, values)
    with np.errstate(invalid="ignore"):
        return np.where((values >= 1.0) & (values <= 2.0), values, np.nan)


def win_rate(preferences: ArrayLike) -> dict[str, float]:
    """Returns the win rate in percent.

    Args:
        preferences: [n] soft preferences in [1, 2], 2 = model wins; NaN, None and values outside are dropped
            and counted; 0 counts as a draw.

    Returns:
        {win_rate: mean(preference - 1) * 100, standard_error: ddof 1, in percent points,
        discrete_win_rate: share above 1.5 plus half the share at 1.5, n, n_invalid}. Without a valid
        preference the rates are NaN; with one the standard error is.
    """
    cleaned = clean_preferences(preferences)
    valid = cleaned[~np.isnan(cleaned)] - 1.0
    n = len(valid)
    return {
        "win_rate": float(valid.mean() * 100.0) if n else float("nan"),
        "standard_error": float(valid.std(ddof=1) / np.sqrt(n) * 100.0) if n > 1 else float("nan"),
        "discrete_win_rate": (
            float(((valid > 0.5).mean() + 0.5 * (valid == 0.5).mean()) * 100.0) if n else float("nan")
        ),
        "n": n,
        "n_invalid": len(cleaned) - n,
    }
