"""Verdicts of rows with two answers: columns that say which is better, as people publish them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def as_number(value: Any) -> float:
    """Returns a number, also one that is written as text or as a truth value; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan


def _one_of(first: float, second: float) -> Callable[[Any], float]:
    """Returns which side a column names by one of two numbers."""
    return lambda value: {first: 1.0, second: -1.0}.get(as_number(value), math.nan)


def _less(value: Any) -> float:
    return -as_number(value)


def _difference(one: Any, other: Any) -> float:
    return as_number(one) - as_number(other)


def _winner(value: Any) -> float:
    """Returns which side an arena's verdict names."""
    said = str(value).strip().lower().removeprefix("model_").removeprefix("response_")
    return {"a": 1.0, "b": -1.0}.get(said, 0.0 if "tie" in said or "both" in said else math.nan)


#: Two answers: title; columns of the prompt and of both answers; columns that say which is better, and their values as
#: a number: above 0 the first is better, below 0 the second, 0 neither; NaN of values that say nothing.
TWO_ANSWERS: tuple[tuple[str, tuple[str, str, str], tuple[str, ...], Callable[..., float]], ...] = (
    ("SHP", ("history", "human_ref_A", "human_ref_B"), ("labels",), _one_of(1, 0)),
    ("PKU-SafeRLHF", ("prompt", "response_0", "response_1"), ("better_response_id",), _one_of(0, 1)),
    ("WebGPT", ("prompt", "answer_0", "answer_1"), ("score_0", "score_1"), _difference),
    ("HelpSteer2", ("prompt", "response_1", "response_2"), ("preference_strength",), _less),
    ("HelpSteer3", ("context", "response1", "response2"), ("overall_preference",), _less),
    ("AlpacaFarm", ("prompt", "output_1", "output_2"), ("preference",), _one_of(1, 2)),
    ("an arena's conversations", ("conversation_a", "conversation_a", "conversation_b"), ("winner",), _winner),
    ("an arena", ("prompt", "response_a", "response_b"), ("winner",), _winner),
    ("an arena's votes", ("prompt", "response_a", "response_b"), ("winner_model_a", "winner_model_b"), _difference),
)
