"""Shapings as steps of a reward: each a function of its values, with its options and running statistics.

Values that are not rewards (padding, beyond a row's segments) stay 0 and count for nothing. Source: PAR, §3.2, §4.1,
Figure 4b, Algorithm 4.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.rollout import RolloutBatch
from rlhf_core.signals import Segments, Sequence, Signal, SignalType, Tokens
from rlhf_core.typed import Checked, above, at_least, between

if TYPE_CHECKING:
    from torch import Tensor

EVERY: tuple[SignalType, ...] = (Sequence, Segments, Tokens)
BY_RESPONSE: tuple[SignalType, ...] = (Sequence, Segments)
#: c^5, c^3, c and 1 of the fifth-order approximation of the sigmoid on [-5, 5] (PAR's released code).
POLYNOMIAL = (2.0266917e-4, -1.01309121e-2, 0.2287885118, 0.5)
#: Added to the references' sample standard deviation, so that equal references have a percentile.
LSC_EPSILON = 1e-5
#: Share of their size by which equal float32 values may differ.
ROUNDING = 1e-6


@dataclass(frozen=True)
class SftUnits:
    """The SFT policy's own rewards and lengths, which constants may be stated in.

    Args:
        mean, deviation: of its responses' rewards as the component sees them, normalised.
        length: its responses' mean length in tokens.
        constants: which of two statements of a constant holds: `value` as the paper has it, or `sft` in units.
    """

    mean: float
    deviation: float
    length: float
    constants: str = "sft"


@dataclass
class Elementwise(Checked, ABC):
    """Base of all shapings: maps the real values of [batch, n] and leaves the rest at 0.

    Attributes:
        takes: signal types.
        affine: whether responses to one prompt are mapped by a*r + b with a > 0.
        constants: those on a reward or length scale, with their unit and what a number of it comes to.
        centred: whether it compares with cached reference rewards of the same prompt.
        needs_outcomes: whether it asks if a response is a right solution, which is known of sampled solutions alone.
    """

    takes: ClassVar[tuple[SignalType, ...]] = EVERY
    affine: ClassVar[bool] = False
    centred: ClassVar[bool] = False
    needs_outcomes: ClassVar[bool] = False
    constants: ClassVar[Mapping[str, tuple[str, Callable[[SftUnits, float], float]]]] = {}

    @abstractmethod
    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        """Returns [batch, n] float32 from values and the mask of those that are rewards."""

    def __call__(self, signal: Signal, batch: RolloutBatch, *, update: bool) -> Signal:
        """Returns the shaped signal, of the same type.

        Raises:
            NumericsError: a reward that is not finite, which a bounded shaping would hide.
        """
        values, mask = _values(signal, batch)
        _refuse_non_finite(values, mask, batch)
        shaped = torch.where(mask, self.shape(values, mask, batch, update), 0.0)
        return replace(signal, values=shaped.squeeze(1) if isinstance(signal, Sequence) else shaped)


def _values(signal: Signal, batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    """Returns (values, mask) [batch, n] of a signal."""
    values = signal.values.float()
    if isinstance(signal, Sequence):
        return values[:, None], torch.ones_like(values, dtype=torch.bool)[:, None]
    return values, signal.segmentation.mask if isinstance(signal, Segments) else batch.responses.mask


def _refuse_non_finite(values: Tensor, mask: Tensor, batch: RolloutBatch) -> None:
    bad = (~torch.isfinite(values) & mask).any(dim=1)
    if bad.any():
        row = int(torch.nonzero(bad)[0])
        raise NumericsError(
            f"shaping: the proxy reward of response {row} of the batch is not finite: {batch.texts[row]!r:.200}"
        )


def references_of(batch: RolloutBatch, count: int) -> Tensor:
    """Returns [batch, count] float32: the first cached reference rewards of every response's prompt."""
    rows = []
    for record in batch.records:
        prompt = str(record.get("id"))
        if prompt not in batch.references:
            raise DataError(
                f"prompt '{prompt}' has no reference rewards; they are cached for {len(batch.references)} prompt(s)",
                remedy="Re-run the stage `references` on the prompts that the policy is trained on",
            )
        found = batch.references[prompt]
        if len(found) < count:
            raise DataError(
                f"prompt '{prompt}' has {len(found)} reference reward(s), the shaping asks for {count}",
                remedy="Raise `responses` in the scale's references.yaml or lower the shaping's `references`",
            )
        rows.append(found[:count])
    references = torch.stack(rows).float().to(batch.prompt_ids.device)
    if not torch.isfinite(references).all():
        row = int(torch.nonzero(~torch.isfinite(references).all(dim=1))[0])
        raise NumericsError(f"shaping: a reference reward of prompt '{batch.records[row].get('id')}' is not finite")
    return references


@dataclass
class Referenced(Elementwise):
    """A shaping by the cached reference rewards of each prompt.

    Args:
        references: M, how many reference rewards of each prompt are used; at least 1.
    """

    references: Annotated[int, at_least(1)] = 10
    takes: ClassVar[tuple[SignalType, ...]] = BY_RESPONSE
    centred: ClassVar[bool] = True


@dataclass
class Centered(Referenced):
    """A shaping of r - r_ref^m, averaged over m. Of segments: v_t - e(x, y_ref^m)."""

    @abstractmethod
    def curve(self, centred: Tensor) -> Tensor:
        """Returns [batch, n] float32 from r - r_ref^m, elementwise."""

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        references = references_of(batch, self.references)
        total = torch.zeros_like(values, dtype=torch.float32)
        for m in range(self.references):
            total += self.curve(values.float() - references[:, m : m + 1])
        return total / self.references


@dataclass
class SigmoidCentered(Centered):
    """PAR (k 1) and its steeper relatives; bounded by (0, 1)."""

    k: Annotated[float, above(0)] = 1.0

    def curve(self, centred: Tensor) -> Tensor:
        return torch.sigmoid(self.k * centred)


@dataclass
class TanhCentered(Centered):
    """Bounded by (-1, 1)."""

    def curve(self, centred: Tensor) -> Tensor:
        return torch.tanh(centred)


@dataclass
class SlowGrowthFastConvergence(Centered):
    """Slow growth, fast convergence: sigmoid(k(c - shift)).

    Args:
        shift: centered reward at which it is steepest; in units, SFT reward deviations.
        k: steepness.
    """

    shift: float = 3.0
    k: Annotated[float, above(0)] = 3.0
    constants = {"shift": ("sft_deviations", lambda units, n: n * units.deviation)}  # noqa: RUF012

    def curve(self, centred: Tensor) -> Tensor:
        return torch.sigmoid(self.k * (centred - self.shift))


@dataclass
class MeanCentered(Centered):
    """r less the mean reference reward, without a bound."""

    affine: ClassVar[bool] = True

    def curve(self, centred: Tensor) -> Tensor:
        return centred


@dataclass
class Polynomial(Centered):
    """The fifth-order fit of the sigmoid on (-5, 5), 0 below and 1 above.

    Args:
        clamp: keep it within [0, 1]; else it is -.011 just above -5 and 1.011 just below 5, and not monotone there.
    """

    clamp: bool = False

    def curve(self, centred: Tensor) -> Tensor:
        fifth, third, first, constant = POLYNOMIAL
        value = fifth * centred**5 + third * centred**3 + first * centred + constant
        value = value.clamp(0.0, 1.0) if self.clamp else value
        return torch.where(centred <= -5.0, 0.0, torch.where(centred >= 5.0, 1.0, value))


@dataclass
class LogSigmoidCentered(Referenced):
    """LSC: log sigmoid of r less a percentile of the normal with the references' mean and sample deviation."""

    references: Annotated[int, at_least(2)] = 10
    percentile: Annotated[float, between(0, 1, open_low=True, open_high=True)] = 0.85

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        references = references_of(batch, self.references)
        mean, deviation = references.mean(dim=1), references.std(dim=1, correction=1)
        quantile = mean + NormalDist().inv_cdf(self.percentile) * (deviation + LSC_EPSILON)
        return torch.nn.functional.logsigmoid(values.float() - quantile[:, None])


@dataclass
class Sigmoid(Elementwise):
    """sigmoid(k r), not centered; bounded by (0, 1)."""

    k: Annotated[float, above(0)] = 1.0

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        return torch.sigmoid(self.k * values.float())


@dataclass
class Tanh(Elementwise):
    """tanh(r), not centered; bounded by (-1, 1)."""

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        return torch.tanh(values.float())


@dataclass
class LengthPenalty(Elementwise):
    """Takes `per_token` off for every token beyond `beyond`; reference rewards are left as they are.

    Args:
        beyond: tokens without penalty; in units, mean SFT lengths.
        per_token: reward per token; in units, SFT reward deviations for one mean SFT length.
    """

    beyond: Annotated[float, at_least(0)] = 300.0
    per_token: Annotated[float, at_least(0)] = 0.01
    takes: ClassVar[tuple[SignalType, ...]] = BY_RESPONSE
    constants = {  # noqa: RUF012
        "beyond": ("sft_lengths", lambda units, n: n * units.length),
        "per_token": ("sft_deviations", lambda units, n: n * units.deviation / units.length),
    }

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        over = (batch.responses.lengths.float() - self.beyond).clamp(min=0.0)
        return values.float() - self.per_token * over[:, None]


@dataclass
class ShortResponse(Elementwise):
    """Gives `value` to responses of at most `tokens` tokens, EOS included, whatever they would earn. Source: ALARM."""

    tokens: Annotated[int, at_least(1)] = 2
    value: float = -10.0
    takes: ClassVar[tuple[SignalType, ...]] = (Sequence,)

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        short = batch.responses.lengths.to(values.device)[:, None] <= self.tokens
        return torch.where(short, self.value, values.float())


@dataclass
class RunningStatistics:
    """Count, mean, squared deviations and range of all values taken in so far, in float64.

    Attributes:
        m2: sum of squared deviations from the mean.
        minimum, maximum: (inf, -inf) while there are no values.
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
        """Takes in a batch of finite values of any shape; of several ranks each has the whole batch.

        Source: Chan et al. 1979, Eq. 1.5 (parallel variance).
        """
        new = values.detach().double().flatten()
        if not new.numel():
            return
        count, mean = self.count + new.numel(), float(new.mean())
        shift = mean - self.mean
        self.m2 += float(((new - mean) ** 2).sum()) + shift**2 * self.count * new.numel() / count
        self.mean += shift * new.numel() / count
        self.minimum, self.maximum = min(self.minimum, float(new.min())), max(self.maximum, float(new.max()))
        self.count = count

    def state_dict(self) -> dict[str, float]:
        """Returns numbers that JSON and a checkpoint hold exactly; without values there is no range."""
        state = asdict(self)
        return state if self.count else {name: state[name] for name in ("count", "mean", "m2")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.count, self.mean, self.m2 = int(state["count"]), float(state["mean"]), float(state["m2"])
        self.minimum = float(state.get("minimum", math.inf))
        self.maximum = float(state.get("maximum", -math.inf))


@dataclass
class Running(Elementwise):
    """A shaping by statistics of all training rewards so far, which take in each batch before it is shaped."""

    affine: ClassVar[bool] = True
    statistics: RunningStatistics = field(default_factory=RunningStatistics, init=False)

    @abstractmethod
    def by(self, values: Tensor, statistics: RunningStatistics) -> Tensor:
        """Returns [batch, n] from values and the statistics so far."""

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        if update:
            self.statistics.update(values[mask])
        return self.by(values, self.statistics)


@dataclass
class MeanStd(Running):
    """(r - running mean)/running deviation; r - mean while the deviation is no more than the mean's rounding."""

    def by(self, values: Tensor, statistics: RunningStatistics) -> Tensor:
        deviation = statistics.deviation
        return (values.float() - statistics.mean) / (deviation if deviation > ROUNDING * abs(statistics.mean) else 1.0)


@dataclass
class MinMax(Running):
    """(r - running minimum)/(running range); 1/2 while the range is rounding. Unseen rewards may leave [0, 1]."""

    def by(self, values: Tensor, statistics: RunningStatistics) -> Tensor:
        low, high = statistics.minimum, statistics.maximum
        if high - low <= ROUNDING * max(abs(low), abs(high)):
            return torch.full_like(values, 0.5, dtype=torch.float32)
        return (values.float() - low) / (high - low)


@dataclass
class Clip(Running):
    """r within one running deviation of the running mean; as it is while fewer than two rewards are known."""

    affine: ClassVar[bool] = False

    def by(self, values: Tensor, statistics: RunningStatistics) -> Tensor:
        if statistics.count < 2:
            return values
        return values.float().clamp(statistics.mean - statistics.deviation, statistics.mean + statistics.deviation)


@dataclass(kw_only=True)
class Ceil(Running):
    """min(r, ceiling). Its running statistics only show whether the ceiling is below every reward.

    Args:
        ceiling: largest reward; in units, SFT reward deviations above the SFT mean.
    """

    ceiling: float
    affine: ClassVar[bool] = False
    constants = {"ceiling": ("sft_deviations", lambda units, n: units.mean + n * units.deviation)}  # noqa: RUF012

    def by(self, values: Tensor, statistics: RunningStatistics) -> Tensor:
        """Raises RecipeError when the ceiling is below every reward: all responses would be paid alike."""
        if statistics.count > 1 and self.ceiling < statistics.minimum:
            raise RecipeError(
                f"shaping 'ceil': the ceiling {self.ceiling:.4g} is below every proxy reward so far (the smallest of "
                f"{statistics.count} is {statistics.minimum:.4g}), so all responses get the same reward; raise it"
            )
        return values.float().clamp(max=self.ceiling)


@dataclass
class OutcomeProbability(Elementwise):
    """sigma(r) - 1/2, in [0, high] for right solutions and in [low, 0] for wrong ones.

    What RLMEC (§4.2) does to a token's probability, done to a response's; a batch's records say which are `correct`.

    Args:
        low: the lowest reward of a wrong solution.
        high: the highest of a right one.
    """

    low: Annotated[float, between(-0.5, 0)] = -0.1
    high: Annotated[float, between(0, 0.5)] = 0.5
    needs_outcomes: ClassVar[bool] = True

    def shape(self, values: Tensor, mask: Tensor, batch: RolloutBatch, update: bool) -> Tensor:
        outcomes = [record.get("correct") for record in batch.records]
        if not all(isinstance(outcome, bool) for outcome in outcomes):
            raise DataError(
                "a response is not known to be right or wrong",
                field="correct",
                remedy="Shape by outcome_probability where the policy learns from sampled solutions alone",
            )
        right = torch.tensor(outcomes, device=values.device)[:, None]
        centred = values.sigmoid() - 0.5
        return torch.where(right, centred.clamp(0.0, self.high), centred.clamp(self.low, 0.0))
