"""Reward normalisers: (r - mean)/std with statistics of a calibration set.

`LocationAware` generalises the scalar mean and std to functions of a segment's normalised location
p = (t+1)/T in (0, 1]: Mean(p) = w_mu log p + b_mu, Std(p) = w_sigma log p + b_sigma.
Source: Segment, Eq. 6, 11, 12 and appendix F.

Deviations: Std(p) is floored, since the printed form becomes negative at small p and flips the reward's
sign; bins with fewer than two samples are dropped and counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_core.choices import Choices
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.lazy import torch
from rlhf_core.signals import Segments, Sequence, Signal, SignalType

Floats = NDArray[np.float64]
ANY: tuple[SignalType, ...] = (Sequence, Segments)


def rounding(mean: float) -> float:
    """Returns the largest standard deviation of rewards that differ by rounding alone: a millionth of their mean."""
    return 1e-6 * abs(mean)


@dataclass(frozen=True)
class NoNormaliser:
    """Leaves the signal as it is."""

    takes = ANY

    def __call__(self, signal: Signal) -> Signal:
        return signal


@dataclass(frozen=True)
class Scalar:
    """(r - mean)/std with one mean and one std.

    Args:
        mean, std: statistics of the calibration set; std must be more than the rounding of the mean.
    """

    mean: float
    std: float
    takes = ANY

    def __post_init__(self) -> None:
        if not (np.isfinite(self.mean) and np.isfinite(self.std) and self.std > rounding(self.mean)):
            raise RecipeError(
                f"normaliser statistics are mean {self.mean}, std {self.std}: the reward model is constant or "
                "diverged on the calibration set"
            )

    def __call__(self, signal: Signal) -> Signal:
        values = (signal.values - self.mean) / self.std
        if isinstance(signal, Segments):
            return Segments(torch.where(signal.segmentation.mask, values, 0.0), signal.segmentation)
        return type(signal)(values)


@dataclass
class LocationAware:
    """(r - Mean(p))/max(Std(p), floor) with p the segment's normalised location.

    Args:
        w_mean, b_mean, w_std, b_std: regression coefficients on log p.
        floor: smallest standard deviation in use, in reward units; must be positive.

    Attributes:
        floor_uses: how many segments met the floor so far.
        segments: how many segments were normalised so far.
    """

    w_mean: float
    b_mean: float
    w_std: float
    b_std: float
    floor: float
    floor_uses: int = 0
    segments: int = 0
    takes = (Segments,)

    def __post_init__(self) -> None:
        values = (self.w_mean, self.b_mean, self.w_std, self.b_std, self.floor)
        if not all(np.isfinite(values)) or self.floor <= 0:
            raise RecipeError(f"location-aware normaliser: coefficients {values} must be finite, the floor positive")

    def state_dict(self) -> dict[str, int]:
        return {"floor_uses": self.floor_uses, "segments": self.segments}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.floor_uses, self.segments = int(state["floor_uses"]), int(state["segments"])

    def statistics(self, location: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the mean and unfloored std at locations in (0, 1], float32."""
        log_p = location.float().log()
        return self.w_mean * log_p + self.b_mean, self.w_std * log_p + self.b_std

    def __call__(self, signal: Signal) -> Signal:
        assert isinstance(signal, Segments)
        mask = signal.segmentation.mask
        mean, std = self.statistics(signal.segmentation.location)
        self.floor_uses += int(((std < self.floor) & mask).sum())
        self.segments += int(mask.sum())
        values = (signal.values - mean) / std.clamp(min=self.floor)
        return Segments(torch.where(mask, values, 0.0), signal.segmentation)


Normaliser = NoNormaliser | Scalar | LocationAware


@dataclass(frozen=True)
class CalibrationSet:
    """Calibration data for the normalisers of one reward model.

    Attributes:
        rewards, locations: [segments] rewards of segments of chosen and rejected responses, and their p in (0, 1].
        sequence_values: [responses] rewards of whole responses, the paper's e(x, y).
        floor_fraction: floor of Std(p) as a share of the pooled standard deviation.
        min_samples: bins of fewer segments are dropped.
    """

    rewards: Floats
    locations: Floats
    sequence_values: Floats
    floor_fraction: float = 0.1
    min_samples: int = 2


@dataclass(frozen=True)
class Bins:
    """Per-location statistics: the regression's data set D_norm.

    Attributes:
        location: [bins] p rounded to 3 decimals, ascending.
        mean, std: [bins] sample mean and population standard deviation (ddof 0) of segment rewards.
        samples: [bins] segments per bin.
        dropped: bins left out for having fewer than `min_samples` segments.
    """

    location: Floats
    mean: Floats
    std: Floats
    samples: NDArray[np.int64]
    dropped: int


def location_bins(locations: Floats, rewards: Floats, min_samples: int = 2) -> Bins:
    """Bins segment rewards by location rounded to 3 decimals, none at 0, where log p has no value.

    Source: Segment, appendix F.
    """
    rounded = np.maximum(np.round(locations, 3), 10.0**-3)
    keys, inverse = np.unique(rounded, return_inverse=True)
    samples = np.bincount(inverse, minlength=len(keys))
    mean = np.bincount(inverse, weights=rewards, minlength=len(keys)) / samples
    centred = rewards - mean[inverse]
    std = np.sqrt(np.bincount(inverse, weights=centred**2, minlength=len(keys)) / samples)
    keep = samples >= min_samples
    return Bins(keys[keep], mean[keep], std[keep], samples[keep], int((~keep).sum()))


#: Regressions of the location-aware normaliser: Huber's with epsilon 1.35, least squares. Source: Segment, appendix F.
REGRESSIONS = ("huber", "ols")


def fit_line(log_p: Floats, values: Floats, estimator: str) -> tuple[float, float]:
    """Returns the slope and intercept of `values` on `log_p`, one unweighted row per bin, by one of `REGRESSIONS`.

    Values far from 1 are fitted in other units, those far from 0 about their mean: scikit-learn's penalty and tolerance
    are absolute.
    """
    from sklearn.linear_model import HuberRegressor, LinearRegression

    if len(np.unique(log_p)) < 2:
        return 0.0, float(values.mean())
    mean, unit = float(values.mean()), _unit(values)
    centre = mean if abs(mean) > 1000 * values.std() > 0 else 0.0
    model = HuberRegressor(epsilon=1.35, max_iter=1000) if estimator == "huber" else LinearRegression()
    model.fit(log_p[:, None], (values - centre) / unit)
    return unit * float(model.coef_[0]), centre + unit * float(model.intercept_)


def _unit(values: Floats) -> float:
    """Returns 1 for values of an ordinary size, else the power of two that makes their spread about 1."""
    size = float(values.std()) or float(np.abs(values).max())
    return 1.0 if size == 0 or 0.01 <= size <= 100 else 2.0 ** round(math.log2(size))


def fit_location_aware(given: CalibrationSet, estimator: str = "huber") -> LocationAware:
    """Fits Mean(p) and Std(p) on calibration segments, by one of `REGRESSIONS`.

    Raises:
        RecipeError: no bin is left, or all rewards are equal.
    """
    rewards = given.rewards
    bins = location_bins(given.locations, rewards, given.min_samples)
    pooled = float(rewards.std()) if rewards.size else 0.0
    if not bins.location.size or pooled <= rounding(float(rewards.mean())):
        raise RecipeError(
            f"location-aware normaliser: {rewards.size} calibration segments leave {bins.location.size} bins with "
            f"standard deviation {pooled}; use more calibration pairs or check the reward model"
        )
    log_p = np.log(bins.location)
    lines = (*fit_line(log_p, bins.mean, estimator), *fit_line(log_p, bins.std, estimator))
    return LocationAware(*lines, given.floor_fraction * pooled)


@dataclass(frozen=True)
class NormaliserChoice:
    """A normaliser as a recipe names it.

    Args:
        build: (what `fit` gave, regression) -> normaliser.
        fit: the numbers that it keeps of a calibration set, None where it keeps none.
        of_segments: whether it is fitted to the worth of segments (see `Aggregated.worth`).
        of_selection: whether its numbers are the selection stage's, of the initial policy's pure samples.
    """

    build: Callable[[Mapping[str, Any], str], Normaliser]
    fit: Callable[[CalibrationSet], dict[str, Any]] | None = None
    of_segments: bool = False
    of_selection: bool = False


def scalar(numbers: Mapping[str, Any], estimator: str) -> Normaliser:
    """Returns the normaliser of one mean and one std."""
    return Scalar(**numbers)


def _location_aware(numbers: Mapping[str, Any], estimator: str) -> Normaliser:
    if estimator not in numbers:
        raise RecipeError(
            f"normaliser 'location_aware' has no coefficients by '{estimator}', only by {sorted(numbers)}"
        )
    return LocationAware(**numbers[estimator])


def _moments(values: Floats) -> dict[str, Any]:
    return {"mean": float(values.mean()), "std": float(values.std())}


def _by_location(given: CalibrationSet) -> dict[str, Any]:
    """Returns coefficients by each regression."""
    kept = ("w_mean", "b_mean", "w_std", "b_std", "floor")
    lines = {name: fit_location_aware(given, name) for name in REGRESSIONS}
    return {estimator: {name: getattr(line, name) for name in kept} for estimator, line in lines.items()}


NORMALISERS = Choices(
    "normaliser",
    {
        "none": NormaliserChoice(lambda numbers, estimator: NoNormaliser()),
        "global": NormaliserChoice(scalar, lambda given: _moments(given.rewards), of_segments=True),
        "last": NormaliserChoice(
            scalar, lambda given: _moments(given.rewards[np.isclose(given.locations, 1.0)]), of_segments=True
        ),
        "sequence": NormaliserChoice(scalar, lambda given: _moments(given.sequence_values)),
        "location_aware": NormaliserChoice(_location_aware, _by_location, of_segments=True),
        "pure_samples": NormaliserChoice(scalar, of_selection=True),
    },
    needs=("build", "fit", "of_segments", "of_selection"),
)


def fit_statistics(
    signals: list[Segments],
    sequence_values: Floats,
    *,
    floor_fraction: float = 0.1,
    min_samples: int = 2,
    own: Collection[str] = (),
) -> dict[str, Any]:
    """Returns the statistics of every normaliser, and of `own` ones (`module:name`), as plain numbers.

    Args:
        signals: segment rewards of chosen and rejected responses.
        sequence_values, floor_fraction, min_samples: see `CalibrationSet`.

    Returns:
        `{"global": {mean, std}, "last": ..., "sequence": ..., "location_aware": {huber: {...}, ols: {...}},
        "bins": {...}, "counts": {...}}`.
    """
    rewards = np.concatenate([s.values[s.segmentation.mask].double().numpy() for s in signals])
    locations = np.concatenate([s.segmentation.location[s.segmentation.mask].double().numpy() for s in signals])
    for what, values in (("segment reward", rewards), ("response reward", sequence_values)):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise NumericsError(
                f"{what} {bad[0] + 1} of {values.size} of the calibration set is {values[bad[0]]}; "
                "the reward model diverged, train it again"
            )
    given = CalibrationSet(rewards, locations, sequence_values, floor_fraction, min_samples)
    choices = {name: NORMALISERS[name] for name in (*NORMALISERS, *own)}
    fitted: dict[str, Any] = {name: choice.fit(given) for name, choice in choices.items() if choice.fit is not None}
    bins = location_bins(locations, rewards, min_samples)
    fitted["bins"] = {name: np.asarray(getattr(bins, name)).tolist() for name in ("location", "mean", "std", "samples")}
    fitted["counts"] = {
        "segments": int(rewards.size),
        "responses": int(sequence_values.size),
        "bins": int(bins.location.size),
        "dropped_bins": bins.dropped,
    }
    return fitted


def build_normaliser(name: str, fitted: Mapping[str, Any] | None, estimator: str = "huber") -> Normaliser:
    """Returns the normaliser of a name from what `fit_statistics` returned.

    Raises:
        RecipeError: unknown name, or no calibration for one that needs it. Normalising by (0, 1) in silence
            is never the answer.
    """
    choice = NORMALISERS[name]
    if choice.fit is None and not choice.of_selection:
        return choice.build({}, estimator)
    if fitted is None or name not in fitted:
        raise RecipeError(f"normaliser '{name}' has no calibration coefficients; run the normaliser stage first")
    return choice.build(fitted[name], estimator)
