"""The shapings that a recipe names, chains of them, and their constants.

    shaping: {kind: par}
    shaping: [{kind: length_penalty}, {kind: ceil, ceiling: {value: 5.0, sft_deviations: 2.0}}]

A constant on a reward or length scale is a number, or is stated in units of the SFT policy's own rewards and lengths
on the training prompts, or both; with both, the experiment's scale says which holds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.steps import (
    EVERY,
    Ceil,
    Clip,
    Elementwise,
    LengthPenalty,
    LogSigmoidCentered,
    MeanCentered,
    MeanStd,
    MinMax,
    OutcomeProbability,
    Polynomial,
    Referenced,
    Running,
    RunningStatistics,
    SftUnits,
    ShortResponse,
    Sigmoid,
    SigmoidCentered,
    SlowGrowthFastConvergence,
    Tanh,
    TanhCentered,
)
from rlhf_core.signals import Signal, SignalType

#: Units in which a constant may be stated.
UNITS = ("sft_deviations", "sft_lengths")
#: Which of two statements of a constant holds: `value` as the paper has it, or `sft` in units.
CONSTANTS = ("value", "sft")


@dataclass
class Chain:
    """Shapings one after another.

    Raises:
        RecipeError: no signal type that all of them take.
    """

    steps: tuple[tuple[str, Elementwise], ...]

    def __post_init__(self) -> None:
        if not self.takes:
            raise RecipeError(f"shaping: no signal fits all of {', '.join(kind for kind, _ in self.steps)}")

    @property
    def takes(self) -> tuple[SignalType, ...]:
        return tuple(kind for kind in EVERY if all(kind in step.takes for _, step in self.steps))

    def __call__(self, signal: Signal, batch: RolloutBatch, *, update: bool) -> Signal:
        return reduce(lambda shaped, step: step[1](shaped, batch, update=update), self.steps, signal)

    def resolved(self) -> dict[str, float]:
        """Returns every constant on a reward or length scale as a number, as `<kind>_<constant>`."""
        return {f"{kind}_{name}": float(getattr(step, name)) for kind, step in self.steps for name in step.constants}

    def _statistics(self) -> dict[str, RunningStatistics]:
        """Returns the running statistics of the steps that have some, by place and kind."""
        steps = enumerate(self.steps)
        return {f"{place}-{kind}": step.statistics for place, (kind, step) in steps if isinstance(step, Running)}

    def state_dict(self) -> dict[str, Any]:
        return {name: statistics.state_dict() for name, statistics in self._statistics().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        known = self._statistics()
        if set(state) != set(known):
            raise RecipeError(f"the saved state is of the shapings {sorted(state)}, not {sorted(known)}")
        for name, values in state.items():
            known[name].load_state_dict(values)


#: Each shaping's class; a `partial` is one with options that its name fixes.
SHAPINGS: Choices[Callable[..., Elementwise]] = Choices(
    "shaping",
    {
        "par": SigmoidCentered,
        "sigmoid_k2": partial(SigmoidCentered, k=2.0),
        "sigmoid_k3": partial(SigmoidCentered, k=3.0),
        "sigmoid": Sigmoid,
        "tanh": Tanh,
        "tanh_centered": TanhCentered,
        "sgfc": SlowGrowthFastConvergence,
        "centered": MeanCentered,
        "poly": Polynomial,
        "lsc": LogSigmoidCentered,
        "ceil": Ceil,
        "clip": Clip,
        "meanstd": MeanStd,
        "minmax": MinMax,
        "length_penalty": LengthPenalty,
        "outcome_probability": OutcomeProbability,
        "short_response": ShortResponse,
    },
    needs=("takes", "affine", "constants", "centred", "needs_outcomes"),
)


def shaping_class(kind: str) -> type[Elementwise]:
    """Returns the class of a shaping, which says what it needs and does to the order of rewards."""
    found: type[Elementwise] = SHAPINGS.named(kind)
    return found


def needs_references(shaping: Any) -> bool:
    """Returns whether cached reference responses are needed: to centre, or for the unit of a constant."""
    return any(shaping_class(step["kind"]).centred or any(map(in_units, step.values())) for step in steps_of(shaping))


def needs_outcomes(shaping: Any) -> bool:
    """Returns whether it must be known which responses are right solutions."""
    return any(shaping_class(step["kind"]).needs_outcomes for step in steps_of(shaping))


def references_needed(shaping: Any) -> int:
    """Returns the number of reference rewards that each prompt needs; 0 for a shaping without references."""
    steps = build_shaping(shaping, SftUnits(0.0, 1.0, 1.0)).steps
    return max((step.references for _, step in steps if isinstance(step, Referenced)), default=0)


def steps_of(shaping: Any) -> list[Mapping[str, Any]]:
    """Returns the steps of a recipe's `shaping` field, a mapping with a kind or a list of such, in order."""
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
        unit, resolve: in which it may be stated, and (units, how many of them) -> number.
        units: None where only numbers can be resolved.
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
    try:
        finite = not isinstance(value, bool) and math.isfinite(value)
    except (TypeError, OverflowError):
        finite = False
    if not finite:
        raise RecipeError(f"shaping: {name} is {str(value)[:40]!r}; it must be a finite number")
    return float(value)


def _step(spec: Mapping[str, Any], units: SftUnits | None) -> Elementwise:
    kind = SHAPINGS.kind_of(spec)
    options = dict(spec)
    for name, (unit, resolve) in shaping_class(kind).constants.items():
        if name in options:
            options[name] = constant(f"{kind}'s {name}", options[name], unit, resolve, units)
    step: Elementwise = SHAPINGS.build(options)
    return step


def build_shaping(spec: Any, units: SftUnits | None = None) -> Chain:
    """Returns the shaping that a recipe's `shaping` field says: mappings with a `kind` of `SHAPINGS` and its options.

    Constants may be stated in units of the SFT policy's rewards and lengths, where these are known.
    """
    return Chain(tuple((str(step["kind"]), _step(step, units)) for step in steps_of(spec)))
