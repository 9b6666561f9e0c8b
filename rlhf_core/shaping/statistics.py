"""Running statistics of the rewards of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class RunningStatistics:
    """Count, mean, squared deviations and range of all values taken in so far, in float64.

    Attributes:
        count: values so far.
        mean: their mean, 0 while there are none.
        m2: sum of squared deviations from the mean.
        minimum, maximum: their range, (inf, -inf) while there are none.
    """

    count: int = 0
    mean: float = 0.0
    m2: float = 0.0
    minimum: float = math.inf
    maximum: float = -math.inf

    @property
    def deviation(self) -> float:
        """Returns the population standard deviation; 0 for fewer than two values."""
        return math.sqrt(max(0.0, self.m2 / self.count)) if self.count > 1 else 0.0

    def update(self, values: Tensor) -> None:
        """Takes in a batch of finite values of any shape; of several ranks each has the whole batch."""
        self.merge(summary(values))

    def merge(self, other: RunningStatistics) -> None:
        """Takes in another's values. Source: Chan et al. 1979, Eq. 1.5 (parallel variance)."""
        if not other.count:
            return
        count, shift = self.count + other.count, other.mean - self.mean
        self.m2 += other.m2 + shift**2 * self.count * other.count / count
        self.mean += shift * other.count / count
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.count = count

    def state_dict(self) -> dict[str, float]:
        """Returns everything, as numbers that JSON and a checkpoint hold exactly; without values there is no
        range."""
        state = asdict(self)
        return state if self.count else {name: state[name] for name in ("count", "mean", "m2")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])
        self.minimum = float(state.get("minimum", math.inf))
        self.maximum = float(state.get("maximum", -math.inf))


def summary(values: Tensor) -> RunningStatistics:
    """Returns statistics of one batch."""
    flat = values.detach().double().flatten()
    if not flat.numel():
        return RunningStatistics()
    mean = flat.mean()
    return RunningStatistics(
        flat.numel(), float(mean), float(((flat - mean) ** 2).sum()), float(flat.min()), float(flat.max())
    )
