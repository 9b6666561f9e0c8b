"""The shapings that a recipe names, chains of them, and what becomes of them under an optimiser that normalises."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import reduce
from itertools import takewhile
from typing import Any

from rlhf_core.errors import RecipeError
from rlhf_core.rewards.signals import Signal, SignalType
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.outcome import OutcomeProbability
from rlhf_core.shaping.specification import Scale, constant, steps_of
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
    Order,
    Polynomial,
    Running,
    SgFc,
    ShortResponse,
    Sigmoid,
    SigmoidCentered,
    Tanh,
    TanhCentered,
)


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
        """Every constant on a reward or length scale as a number, as `<kind>_<constant>`."""
        return {f"{kind}_{name}": float(getattr(step, name)) for kind, step in self.steps for name in step.constants}

    def state_dict(self) -> dict[str, Any]:
        """State of the steps with running statistics, by place and kind."""
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


#: Each shaping's class, and the options that its name fixes.
SHAPINGS: dict[str, tuple[type[Elementwise], Mapping[str, Any]]] = {
    "par": (SigmoidCentered, {}),
    "sigmoid_k2": (SigmoidCentered, {"k": 2.0}),
    "sigmoid_k3": (SigmoidCentered, {"k": 3.0}),
    "sigmoid": (Sigmoid, {}),
    "tanh": (Tanh, {}),
    "tanh_centered": (TanhCentered, {}),
    "sgfc": (SgFc, {}),
    "centered": (MeanCentered, {}),
    "poly": (Polynomial, {}),
    "lsc": (LogSigmoidCentered, {}),
    "ceil": (Ceil, {}),
    "clip": (Clip, {}),
    "meanstd": (MeanStd, {}),
    "minmax": (MinMax, {}),
    "length_penalty": (LengthPenalty, {}),
    "outcome_probability": (OutcomeProbability, {}),
    "short_response": (ShortResponse, {}),
}


def _hint(word: str, known: list[str]) -> str:
    near = get_close_matches(word, known, n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; known: {', '.join(known) or 'none'}"


def _step(spec: Mapping[str, Any], scale: Scale | None) -> Elementwise:
    kind = str(spec["kind"])
    if kind not in SHAPINGS:
        raise RecipeError(f"unknown shaping '{kind}'{_hint(kind, list(SHAPINGS))}")
    cls, fixed = SHAPINGS[kind]
    known = [f.name for f in fields(cls) if f.init and f.name not in fixed]
    options = {name: value for name, value in spec.items() if name != "kind"}
    for name in options:
        if name not in known:
            raise RecipeError(f"shaping '{kind}': unknown option '{name}'{_hint(str(name), known)}")
    for name, (unit, resolve) in cls.constants.items():
        if name in options:
            options[name] = constant(f"{kind}'s {name}", options[name], unit, resolve, scale)
    try:
        return cls(**fixed, **options)
    except TypeError as error:
        message = str(error).replace(f"{cls.__name__}.__init__() ", "")
        raise RecipeError(f"shaping '{kind}': {message}") from None


def build_shaping(spec: Any, scale: Scale | None = None) -> Chain:
    """The shaping that a recipe's `shaping` field says.

    Args:
        spec: a mapping with a `kind` of `SHAPINGS` and its options, or a list of such.
        scale: the SFT policy's rewards and lengths, where a constant is stated in units of them.

    Raises:
        RecipeError: an unknown kind, option or unit, with the nearest known; a value out of range.
    """
    return Chain(tuple((str(step["kind"]), _step(step, scale)) for step in steps_of(spec)))


def useless_combination(shaping: Chain | None, optimiser_kind: str) -> str | None:
    """Why an optimiser learns the same without a shaping, or without its last steps; None where it does not.

    GRPO normalises a reward of one value per response within its group; online DPO orders its pairs by the raw proxy,
    so that no step of any shaping reaches it. Source: PAR, §5 and §11.

    Args:
        shaping: of the only component.
        optimiser_kind: a recipe's `optimiser.kind`.
    """
    if shaping is None:
        return None
    without_effect: dict[str, Callable[[Elementwise], bool]] = {
        "grpo": lambda step: step.affine,
        "online_dpo": lambda step: True,
    }
    if optimiser_kind not in without_effect:
        return None
    last = list(takewhile(lambda step: without_effect[optimiser_kind](step[1]), reversed(shaping.steps)))
    names = ", ".join(kind for kind, _ in reversed(last))
    if not last:
        return None
    if optimiser_kind == "grpo":
        return (
            f"shaping '{names}' maps the rewards of a group by a*r + b with a > 0, which GRPO's advantages "
            "(r - mean)/std cancel: training is the same without it"
        )
    return (
        f"shaping '{names}' never reaches online DPO, which only asks which of two responses has the higher raw proxy: "
        "training is the same without it"
    )
