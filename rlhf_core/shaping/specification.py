"""Specification of a shaping in a recipe: its steps, constants and requirements, without the mathematics.

    shaping: {kind: par}
    shaping: [{kind: length_penalty}, {kind: ceil, ceiling: {value: 5.0, sft_deviations: 2.0}}]

A constant on a reward or length scale is a number, or is stated in units of the SFT policy's own rewards and lengths
on the training prompts, or both; with both, the experiment's scale says which holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_core.errors import RecipeError

#: Units in which a constant may be stated.
UNITS = ("sft_deviations", "sft_lengths")
#: Which of two statements of a constant holds: `value` as the paper has it, or `sft` in units.
CONSTANTS = ("value", "sft")


@dataclass(frozen=True)
class SftUnits:
    """The SFT policy's own rewards and lengths, which constants may be stated in.

    Args:
        mean, deviation: of its responses' rewards as the component sees them, normalised.
        length: its responses' mean length in tokens.
        constants: one of `CONSTANTS`.
    """

    mean: float
    deviation: float
    length: float
    constants: str = "sft"


def steps_of(shaping: Any) -> list[Mapping[str, Any]]:
    """Returns the steps of a recipe's `shaping` field, in order.

    Raises:
        RecipeError: something else than a mapping with a kind, or a list of such.
    """
    steps = [shaping] if isinstance(shaping, Mapping) else shaping
    if not isinstance(steps, list | tuple) or not steps:
        raise RecipeError(f"shaping is {shaping!r}; it must be a mapping, as in {{kind: par}}, or a list of such")
    for step in steps:
        if not isinstance(step, Mapping) or not isinstance(step.get("kind"), str):
            raise RecipeError(f"shaping step {step!r} must be a mapping with a kind, as in {{kind: par}}")
    return list(steps)


def in_units(value: Any) -> bool:
    """Returns whether a constant is stated in units of the SFT policy."""
    return isinstance(value, Mapping) and any(unit in value for unit in UNITS)


def constant(
    name: str, stated: Any, unit: str, resolve: Callable[[SftUnits, float], float], units: SftUnits | None
) -> float:
    """Returns the number that a constant comes to.

    Args:
        name: the constant's, for errors.
        stated: a number, or `{value: number, <unit>: number}` with at least one of the two.
        unit: the unit in which it may be stated.
        resolve: (units, how many of them) -> number.
        units: None where only numbers can be resolved.

    Raises:
        RecipeError: anything else, or units without the SFT policy's rewards.
    """
    if not isinstance(stated, Mapping):
        return _number(name, stated)
    if not stated or not set(stated) <= {"value", unit}:
        raise RecipeError(f"shaping: {name} is {dict(stated)}; state a number, or {{value: ..., {unit}: ...}}")
    numbers = {which: _number(name, number) for which, number in stated.items()}
    if unit not in numbers or ("value" in numbers and (units is None or units.constants == "value")):
        return numbers["value"]
    if units is None:
        raise RecipeError(f"shaping: {name} is stated in {unit}, which needs the SFT policy's reference rewards")
    return float(resolve(units, numbers[unit]))


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RecipeError(f"shaping: {name} is {value!r}; it must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RecipeError(f"shaping: {name} is {str(value)[:40]}; it must be a finite number")
    return number
