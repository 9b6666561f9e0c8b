"""Search spaces of tuning: for each kind of optimiser the settings that are searched, and their ranges.

# params/tuning.yaml
scramble: 0
spaces:
  ppo:
    actor_lr: {low: 1.0e-4, high: 4.0e-3, log: true}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from rlhf_core.errors import RecipeError, hint
from rlhf_core.policy_optimisation.config import OPTIMISERS, OptimiserConfig, composed
from rlhf_core.recipe import OPTIMISER_KINDS
from rlhf_core.supervised.config import TrainingConfig
from rlhf_core.supervised.recipes import RECIPES
from rlhf_core.typed import Checked, check_given, init_fields, one_of, typed
from tasks.params.pages import read_page, read_settings

FILE = Path("params") / "tuning.yaml"


@dataclass(frozen=True)
class SearchRange(Checked):
    """The values of a setting that tuning tries; with `log` orders of magnitude are covered evenly, not values."""

    low: float
    high: float
    log: bool = False

    def _check_together(self) -> None:
        if not self.low < self.high:
            raise RecipeError(f"low is {self.low:g} and high {self.high:g}; low must be below high")
        if self.log and self.low <= 0:
            raise RecipeError(f"low is {self.low:g} and log is true; a logarithmic range lies above 0")


#: {setting: range}
Space = Mapping[str, SearchRange]


@dataclass(frozen=True)
class TuningSpec(Checked):
    """The search spaces of all kinds of optimisers, by kind and setting."""

    spaces: Mapping[Annotated[str, one_of(OPTIMISER_KINDS)], Mapping[str, SearchRange]]

    def _check_together(self) -> None:
        for kind, space in self.spaces.items():
            if not space:
                raise RecipeError(f"spaces.{kind} is empty; name at least one setting and its range")
            for bound in ("low", "high"):
                _check_bound(kind, {name: float(getattr(range_, bound)) for name, range_ in space.items()})

    def space(self, kind: str, where: str) -> Space:
        """Returns the space of a kind of optimiser.

        Raises:
            RecipeError: the kind has none.
        """
        if kind not in self.spaces:
            known = hint(kind, sorted(self.spaces), more=3)
            raise RecipeError(f"{where}: {FILE} has no search space for optimiser '{kind}'{known}")
        return self.spaces[kind]


def _check_bound(kind: str, values: Mapping[str, float]) -> None:
    """Refuses a setting that the kind does not have or read, or a value that the setting does not take."""
    if kind in OPTIMISERS:
        check_given(OptimiserConfig, values, f"spaces.{kind}.")
        composed(kind, values)
        return
    own = init_fields(RECIPES[kind])
    check_given(RECIPES[kind], {n: v for n, v in values.items() if n in own}, f"spaces.{kind}.")
    check_given(TrainingConfig, {n: v for n, v in values.items() if n not in own}, f"spaces.{kind}.")


def tuning_spec(root: Path) -> TuningSpec:
    """Reads params/tuning.yaml."""
    names = read_page(root / FILE).names
    return typed(TuningSpec, {"spaces": {n: read_settings(f"{root / FILE}:{n}") for n in names}}, FILE.as_posix())
