"""Readings of a reward model at segment ends: values, differences, parts of the aggregated reward, or all of it.

A read-out says what it needs, so that recipe and scorer ask it and no name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.choices import Choices
from rlhf_core.rewards.aggregation import Aggregated, Aggregation, differences
from rlhf_core.segmentation.segments import Segmentation
from rlhf_core.signals import Segments, Sequence, SignalType

if TYPE_CHECKING:
    from rlhf_core.models.reward_model import SegmentStates


@dataclass(frozen=True)
class Read:
    """A way to read a reward model.

    Args:
        gives: the type of its signal.
        rewards: (states of segments, the model's aggregation, base) -> rewards and weights of segments.
        signal: what of those is paid.
        of_token_values: the signal of the head's values at segment ends alone, where they are enough.
        enough: whether they are, given the model's aggregation.
        fits_normalisers: whether normalisers that are fitted to what segments are worth apply to it.
        has_references: whether reference rewards of it are known, which centred shapings need.
    """

    gives: SignalType
    rewards: Callable[[SegmentStates, Aggregation, str], Aggregated]
    signal: Callable[[Aggregated, Segmentation], Segments | Sequence]
    of_token_values: Callable[[Segments], Segments | Sequence] | None = None
    enough: Callable[[Aggregation], bool] = lambda aggregation: False
    fits_normalisers: bool = False
    has_references: bool = False


def _values(states: SegmentStates, aggregation: Aggregation, base: str) -> Aggregated:
    """Returns values at segment ends with weight 1, however the model aggregates them."""
    return Aggregated(states.values.sum(dim=1), states.values, states.mask.float())


def _differences(states: SegmentStates, aggregation: Aggregation, base: str) -> Aggregated:
    """Returns what each segment adds to the value before it, with weight 1."""
    rewards = differences(states, base)
    return Aggregated(rewards.sum(dim=1), rewards, states.mask.float())


def _rewards(found: Aggregated, segmentation: Segmentation) -> Segments:
    return Segments(found.rewards, segmentation)


READS = Choices(
    "read-out",
    {
        "value": Read(
            Segments,
            _values,
            _rewards,
            of_token_values=lambda values: values,
            enough=lambda aggregation: True,
            fits_normalisers=True,
            has_references=True,
        ),
        "difference": Read(Segments, _differences, _rewards),
        "weighted": Read(
            Segments,
            lambda states, aggregation, base: aggregation(states),
            lambda found, segmentation: Segments(found.contributions, segmentation),
            fits_normalisers=True,
        ),
        "aggregate": Read(
            Sequence,
            lambda states, aggregation, base: aggregation(states),
            lambda found, segmentation: Sequence(found.total),
            of_token_values=lambda values: Sequence(values.masked_mean()),
            enough=lambda aggregation: aggregation.entry.of_values,
            fits_normalisers=True,
            has_references=True,
        ),
    },
    needs=("gives", "rewards", "signal", "of_token_values", "enough", "fits_normalisers", "has_references"),
)
