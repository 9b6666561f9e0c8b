"""Annotators whose temperature follows from the accuracy that nobody can beat on their labels.

A dial changes how far the rewards of two responses are apart, and with it how hard their labels are to predict. The
calibrated temperature keeps the Bayes ceiling where it is, so the dial moves nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rlhf_core.errors import RecipeError, hint
from rlhf_core.testbed.annotator import Annotator, pair_utilities, sigmoid
from rlhf_core.typed import typed

if TYPE_CHECKING:
    from rlhf_core.testbed.world import World

CALIBRATED = "calibrated"
"""Temperature of an annotator in a data spec that `calibrated_temperature` finds."""

DEFAULT_CEILING = 0.83
"""Bayes ceiling of the unbiased annotator at the default temperature of .75 in the default world."""

PAIRS = 4000
"""Pairs that a temperature is fitted to; the ceiling of other pairs differs by .003 (standard error)."""

SEED = -1
"""Seed of these pairs, which no data set has."""

BIASES = ("length_bias", "flattery_bias", "keyword_bias", "repetition_bias")


def calibrated_temperature(world: World, target: float = DEFAULT_CEILING, annotator: Annotator | None = None) -> float:
    """Returns the temperature at which the Bayes ceiling of a world's pairs is `target`, to four digits.

    Args:
        world: draws the pairs, always the same ones.
        target: the ceiling, between .5 and 1.
        annotator: its biases count; its temperature and flipped labels do not.

    Raises:
        RecipeError: a ceiling that no temperature between 1e-4 and 1e4 has.
    """
    biased = annotator or Annotator()
    pairs = (pair_utilities(row, biased) for row in world.preference_pairs(PAIRS, SEED))
    gaps = [abs(first - second) for first, second in pairs]
    low, high = math.log(1e-4), math.log(1e4)
    if not _ceiling(gaps, high) < target < _ceiling(gaps, low):
        raise RecipeError(
            f"ceiling is {target:g}; in this world it must be between {_ceiling(gaps, high):.3f} and "
            f"{_ceiling(gaps, low):.3f}"
        )
    while high - low > 1e-7:
        middle = (low + high) / 2
        low, high = (middle, high) if _ceiling(gaps, middle) > target else (low, middle)
    return float(f"{math.exp(low):.4g}")


def _ceiling(gaps: Sequence[float], log_temperature: float) -> float:
    temperature = math.exp(log_temperature)
    return sum(sigmoid(gap / temperature) for gap in gaps) / len(gaps)


def check_annotator(settings: Mapping[str, Any]) -> None:
    """Refuses settings of an annotator that `annotator_of` does not take.

    Raises:
        RecipeError: an unknown field, a value that its field does not allow, or a ceiling without calibration.
    """
    given = {name: value for name, value in settings.items() if name != "ceiling"}
    temperature, ceiling = given.get("temperature"), settings.get("ceiling")
    if isinstance(temperature, str):
        if temperature != CALIBRATED:
            raise RecipeError(f"annotator: temperature is '{temperature}'{hint(temperature, (CALIBRATED,))}")
        del given["temperature"]
    elif "ceiling" in settings:
        raise RecipeError("annotator: ceiling belongs to 'temperature: calibrated'; leave it out, or calibrate")
    if ceiling is not None and not (isinstance(ceiling, float) and 0.5 < ceiling < 1):
        raise RecipeError(f"annotator: ceiling is {ceiling}; it must be between 0.5 and 1, both excluded")
    typed(Annotator, given, "annotator")


def annotator_of(settings: Mapping[str, Any], world: World) -> Annotator:
    """Returns the annotator of a data spec: fields of `Annotator`, or `temperature: calibrated` with `ceiling`.

    Biases are in the world's unit, so that a flaw is as strong beside the true reward at every setting of a dial.
    """
    check_annotator(settings)
    given = {name: value * world.unit if name in BIASES else value for name, value in settings.items()}
    target = given.pop("ceiling", None) or DEFAULT_CEILING
    if given.get("temperature") != CALIBRATED:
        return Annotator(**given)
    del given["temperature"]
    annotator = Annotator(**given)
    return replace(annotator, temperature=calibrated_temperature(world, target, annotator))
