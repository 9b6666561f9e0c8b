"""Selection of aspect rewards by their consistency with the holistic reward.

The initial policy answers every prompt twice, greedily and by pure sampling. An aspect is inconsistent with the
holistic reward on a prompt where the two prefer different answers. Pairs of equal holistic reward are dropped; a tie
of the aspect counts as consistent. Of error rates, where lower is better, the sign is turned both here and in the win
rate. Source: ALARM, §3.2 and §4.2, Figures 3 and 4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlhf_core.choices import Choices
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.typed import Checked, between, one_of

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pairs:
    """One reward's values of greedy and sampled answers to the same prompts.

    Args:
        greedy, sampled: [prompts] values.
        higher_is_better: False for error rates.
    """

    greedy: ArrayLike
    sampled: ArrayLike
    higher_is_better: bool = True

    @property
    def preference(self) -> NDArray[np.int8]:
        """Returns [prompts] 1 where the greedy answer is better, -1 where the sampled one is, 0 for a tie."""
        sign = 1 if self.higher_is_better else -1
        return (sign * np.sign(np.subtract(self.greedy, self.sampled, dtype=np.float64))).astype(np.int8)

    @property
    def never_prefers(self) -> bool:
        """Returns whether the reward prefers neither answer on every prompt."""
        return not self.preference.any()


def _percent(part: Floats | NDArray[np.bool_], whole: Floats | NDArray[np.bool_], empty: float) -> float:
    count = float(np.sum(whole))
    return 100.0 * float(np.sum(part)) / count if count else empty


def _apart(by: NDArray[np.int8], other: NDArray[np.int8]) -> float:
    return _percent(by * other < 0, by != 0, math.nan)


def _won(preference: NDArray[np.int8]) -> float:
    return _percent(preference > 0, preference != 0, 50.0)


def inconsistency(holistic: Pairs, aspect: Pairs) -> float:
    """Returns the percent of the pairs decided by the holistic reward where the aspect prefers the other answer; NaN
    without."""
    return _apart(holistic.preference, aspect.preference)


def consistency(
    holistic: Pairs, aspect: Pairs, *, rounds: int = 1000, level: float = 0.95, seed: int = 0
) -> dict[str, Any]:
    """Returns an aspect beside the holistic reward, with percentile bootstrap intervals over prompts.

    Args:
        rounds, level, seed: of the bootstrap; the same prompts are drawn for every aspect.

    Returns:
        {inconsistency; win_rate: of greedy answers over sampled ones, ties left out, 50 where nothing decides: each
        {estimate, lower, upper} in percent, None where undefined; pairs: how many the holistic reward decides; ties: of
        those, where the aspect decides nothing}.
    """
    by, other = holistic.preference, aspect.preference
    drawn = np.random.default_rng(seed).integers(len(by), size=(rounds, len(by))) if len(by) else np.zeros((0, 0), int)
    apart = [one for one in (_apart(by[rows], other[rows]) for rows in drawn) if math.isfinite(one)]
    return {
        "inconsistency": _interval(_apart(by, other), apart, level),
        "win_rate": _interval(_won(other), [_won(other[rows]) for rows in drawn], level),
        "pairs": int((by != 0).sum()),
        "ties": int(((by != 0) & (other == 0)).sum()),
    }


def _interval(estimate: float, drawn: Sequence[float], level: float) -> dict[str, float | None]:
    if math.isnan(estimate):
        return dict.fromkeys(("estimate", "lower", "upper"))
    lower, upper = np.quantile(drawn, [(1 - level) / 2, (1 + level) / 2]).tolist() if drawn else (None, None)
    return {"estimate": estimate, "lower": lower, "upper": upper}


@dataclass(frozen=True)
class AspectRule:
    """A way to choose aspects.

    Args:
        choose: (names in order of inconsistency, inconsistencies, cutoff) -> chosen names.
        needs_cutoff: whether a cutoff goes with it.
    """

    choose: Callable[[list[str], Mapping[str, float], float], list[str]]
    needs_cutoff: bool = False


def _lowest(ranked: list[str], inconsistencies: Mapping[str, float], cutoff: float) -> list[str]:
    """Returns the aspect of lowest inconsistency."""
    return ranked[:1]


def _below(ranked: list[str], inconsistencies: Mapping[str, float], cutoff: float) -> list[str]:
    """Returns every aspect whose inconsistency is below the cutoff."""
    return [name for name in ranked if inconsistencies[name] < cutoff]


RULES = Choices(
    "selection rule",
    {"lowest": AspectRule(_lowest), "below": AspectRule(_below, needs_cutoff=True)},
    needs=("choose", "needs_cutoff"),
)


@dataclass(frozen=True)
class SelectionRule(Checked):
    """A choice of the aspects that accompany the holistic reward.

    Args:
        kind: 'lowest' takes the one of lowest inconsistency, 'below' all below the cutoff.
        cutoff: percent, of 'below'.
    """

    kind: Annotated[str, one_of(RULES)] = "lowest"
    cutoff: Annotated[float, between(0, 100, open_low=True)] | None = None

    def _check_together(self) -> None:
        if RULES[self.kind].needs_cutoff != (self.cutoff is not None):
            raise RecipeError(f"selection rule '{self.kind}' with cutoff {self.cutoff}: 'below' needs one, alone")

    def choose(self, inconsistencies: Mapping[str, float], constant: Sequence[str] = ()) -> list[str]:
        """Returns the chosen aspects in order of inconsistency; equal ones in the order given.

        An aspect that is constant contradicts nothing and says nothing: it is never chosen.

        Raises:
            DataError: there is nothing to choose by: the holistic reward decides no pair, or every aspect is constant.
        """
        told = {name: value for name, value in inconsistencies.items() if name not in constant}
        if not told:
            raise DataError(
                "selection: every aspect is constant over the generations", remedy="Check the aspects, or use others"
            )
        if any(math.isnan(value) for value in told.values()):
            raise DataError(
                "selection: the holistic reward ties on every pair of generations",
                remedy="Check the holistic reward, or sample at a higher temperature",
            )
        ranked = sorted(told, key=lambda name: told[name])
        return RULES[self.kind].choose(ranked, told, math.nan if self.cutoff is None else self.cutoff)
