"""The shapings that a recipe names, and chains of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

from rlhf_core.choices import Choices
from rlhf_core.errors import RecipeError
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.specification import SftUnits, constant, in_units, steps_of
from rlhf_core.shaping.steps import (
    EVERY,
    Ceil,
    Centered,
    Clip,
    Elementwise,
    LengthPenalty,
    LogSigmoidCentered,
    MeanCentered,
    MeanStd,
    MinMax,
    Order,
    OutcomeProbability,
    Polynomial,
    Running,
    SgFc,
    ShortResponse,
    Sigmoid,
    SigmoidCentered,
    Tanh,
    TanhCentered,
)
from rlhf_core.signals import Signal, SignalType


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

    @property
    def order(self) -> Order:
        orders = {step.order for _, step in self.steps}
        return "none" if "none" in orders else "weak" if "weak" in orders else "strict"

    @property
    def affine(self) -> bool:
        return all(step.affine for _, step in self.steps)

    def __call__(self, signal: Signal, batch: RolloutBatch, *, update: bool) -> Signal:
        return reduce(lambda shaped, step: step[1](shaped, batch, update=update), self.steps, signal)

    def resolved(self) -> dict[str, float]:
        """Returns every constant on a reward or length scale as a number, as `<kind>_<constant>`."""
        return {f"{kind}_{name}": float(getattr(step, name)) for kind, step in self.steps for name in step.constants}

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the steps with running statistics, by place and kind."""
        return {
            f"{place}-{kind}": step.state_dict()
            for place, (kind, step) in enumerate(self.steps)
            if isinstance(step, Running)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave.

        Raises:
            RecipeError: the state of other shapings.
        """
        running = {f"{place}-{kind}": step for place, (kind, step) in enumerate(self.steps)}
        if set(state) != set(self.state_dict()):
            raise RecipeError(f"the saved state is of the shapings {sorted(state)}, not {sorted(self.state_dict())}")
        for name, values in state.items():
            step = running[name]
            assert isinstance(step, Running)
            step.load_state_dict(values)


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
        "sgfc": SgFc,
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
    needs=("takes", "order", "affine", "constants", "centred", "needs_outcomes"),
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
    return max((step.references for _, step in steps if isinstance(step, Centered)), default=0)


def _step(spec: Mapping[str, Any], units: SftUnits | None) -> Elementwise:
    kind = SHAPINGS.kind_of(spec)
    options = dict(spec)
    for name, (unit, resolve) in shaping_class(kind).constants.items():
        if name in options:
            options[name] = constant(f"{kind}'s {name}", options[name], unit, resolve, units)
    step: Elementwise = SHAPINGS.build(options)
    return step


def build_shaping(spec: Any, units: SftUnits | None = None) -> Chain:
    """Returns the shaping that a recipe's `shaping` field says.

    Args:
        spec: a mapping with a `kind` of `SHAPINGS` and its options, or a list of such.
        units: the SFT policy's rewards and lengths, where a constant is stated in units of them.

    Raises:
        RecipeError: an unknown kind, option or unit, with the nearest known; a value out of range.
    """
    return Chain(tuple((str(step["kind"]), _step(step, units)) for step in steps_of(spec)))
