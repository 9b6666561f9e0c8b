"""Settings of a row over those of a scale, and the numbers that settings often are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from rlhf_core.errors import RecipeError
from rlhf_core.typed import at_least, between
from rlhf_core.typed import typed as typed

#: The scale of commands that name none; its demo rows are in the root dvc.yaml.
DEFAULT_SCALE = "testbed"
#: Numbers that settings often are.
Count = Annotated[int, at_least(1)]
Size = Annotated[int, at_least(0)]
Share = Annotated[float, between(0, 1)]
InnerShare = Annotated[float, between(0, 1, open_low=True, open_high=True)]

#: Parts that data may provide for stages, in the words of refusals.
PAIRS, TRUE_REWARDS, CLAUSES = "preference pairs", "true rewards", "the testbed's clauses"
QUESTIONS, TESTBED_QUESTIONS, DIALOGUES = (
    "questions with a 'task'",
    "the testbed's questions",
    "the testbed's dialogues",
)
LONG_FORM, FACTS = "labelled long-form answers", "the facts of the testbed's long-form questions"
#: Parts that a reward model may provide.
TRAINED, TOKENS, SEGMENTS = "trained weights", "values at the policy's tokens", "rewards of segments"
FITTED, REFERENCES = "fitted normalisers", "reference rewards"


@dataclass(frozen=True)
class Need:
    """A part that a setting needs of what its stage reads; `tasks.graph.needs` compares it with what is provided.

    Attributes:
        part: one of the words above, or `benchmark_part`.
        field, value: the setting that needs it.
    """

    part: str
    field: str
    value: Any


def benchmark_part(name: str) -> str:
    """Returns a benchmark as a part that data may provide."""
    return f"benchmark '{name}'"


def overrides(own: Mapping[str, Any], scale: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a recipe's own settings over the scale's; `{times: 2}` is twice the scale's value.

    Raises:
        RecipeError: a multiple that is not a finite number, or of what is not a number.
    """
    return {name: _multiple(name, value, scale) for name, value in own.items() if name != "kind"}


def _finite(number: float) -> bool:
    """Returns whether a number is one that a float holds."""
    try:
        return math.isfinite(number)
    except OverflowError:
        return False


def _multiple(name: str, value: Any, scale: Mapping[str, Any]) -> Any:
    if not isinstance(value, Mapping):
        return value
    times, own = value.get("times"), scale.get(name)
    for number, whose in ((times, "the row"), (own, "the scale")):
        known = isinstance(number, int | float) and not isinstance(number, bool) and _finite(number)
        if set(value) != {"times"} or not known:
            raise RecipeError(
                f"{name} is {str(dict(value))[:80]}, but {whose} gives {str(number)[:40]}; state a number, or "
                "{times: 2} of that number"
            )
    found = times * own  # type: ignore[operator]
    if not _finite(found):
        raise RecipeError(f"{name} is {times} times {own}, which is too large; it must be a finite number")
    return round(found) if isinstance(own, int) else found
