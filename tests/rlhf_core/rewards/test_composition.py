"""Composition: the breakdown adds up, types are checked, and non-finite rewards stop the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import batch_of, random_rows

from rlhf_core.credit import CREDITS
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.normalisers import LocationAware, Scalar
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rollout import RolloutBatch
from rlhf_core.segmentation.segmenters import NGram
from rlhf_core.signals import Segments, Sequence, SignalType, Tokens


@dataclass
class Fixed:
    """Gives random values times `scale`, or `value` everywhere."""

    gives: SignalType
    seed: int = 0
    scale: float = 1.0
    value: float | None = None

    def score(self, batch: RolloutBatch) -> Any:
        segmentation = NGram(2).segment(batch.responses)
        shapes = {Sequence: (len(batch),), Segments: segmentation.ends.shape, Tokens: batch.responses.ids.shape}
        generator = torch.Generator().manual_seed(self.seed)
        values = self.scale * torch.randn(shapes[self.gives], generator=generator)
        if self.value is not None:
            values = torch.full_like(values, self.value)
        return Segments(values, segmentation) if self.gives is Segments else self.gives(values)  # type: ignore[call-arg]


@dataclass
class Elementwise:
    """Applies a function to every value, and counts the batches that it may learn from."""

    function: Callable[[torch.Tensor], torch.Tensor]
    takes: tuple[SignalType, ...] = (Sequence, Segments, Tokens)
    seen: int = 0

    def __call__(self, signal: Any, batch: RolloutBatch, *, update: bool) -> Any:
        self.seen += update
        return replace(signal, values=self.function(signal.values))

    def state_dict(self) -> dict[str, int]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        self.seen = state["seen"]


BATCH = batch_of([[5, 6], [7]], random_rows(0, [5, 3]))


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([None, 0.3, 10.0]), st.floats(-3, 3))
def test_the_breakdown_adds_up_to_the_total(seed: int, clamp: float | None, weight: float) -> None:
    components = (
        Component("a", Fixed(Sequence, seed, 5.0), CREDITS["last_token"], Scalar(1.0, 2.0)),
        Component("b", Fixed(Segments, seed + 1), CREDITS["even_split"], weight=weight),
        Component("c", Fixed(Tokens, seed + 2), CREDITS["as_is"], shaping=Elementwise(torch.sigmoid)),
    )
    output = Reward(components, clamp)(BATCH)
    stacked = torch.stack(list(output.breakdown.values())).sum(dim=0)
    torch.testing.assert_close(output.total, stacked, atol=1e-5, rtol=1e-5)
    assert ("clamp" in output.breakdown) == (clamp is not None)
    plain = sum(output.breakdown[name] for name in "abc")
    if clamp is not None:
        torch.testing.assert_close(output.total, plain.clamp(-clamp, clamp), atol=1e-5, rtol=1e-5)  # type: ignore[union-attr]
    assert output.total[~BATCH.responses.mask].abs().sum() == 0
    torch.testing.assert_close(output.sequence_totals(), output.total.sum(dim=1))
    assert torch.equal(output.raw["a"].values, Fixed(Sequence, seed, 5.0).score(BATCH).values)


def test_the_order_is_normalise_shape_place_weigh_clamp() -> None:
    component = Component(
        "a",
        Fixed(Segments, value=6.0),
        CREDITS["even_split"],
        Scalar(2.0, 2.0),
        shaping=Elementwise(torch.square),
        weight=3.0,
    )
    output = Reward((component,), clamp=7.0)(BATCH)  # ((6-2)/2)^2 = 4, halved over 2 tokens = 2, times 3 = 6
    assert output.breakdown["a"].tolist() == [[6, 6, 6, 6, 0], [6, 6, 0, 0, 0]]
    output = Reward((component,), clamp=5.0)(BATCH)
    assert output.total.tolist() == [[5, 5, 5, 5, 0], [5, 5, 0, 0, 0]]
    assert output.breakdown["clamp"].tolist() == [[-1, -1, -1, -1, 0], [-1, -1, 0, 0, 0]]


def test_type_mismatches_are_refused_by_name() -> None:
    with pytest.raises(RecipeError, match=r"component 'quality': the credit rule takes Sequence .* gives Segments"):
        Component("quality", Fixed(Segments), CREDITS["last_token"])
    location_aware = LocationAware(0, 0, 0, 1, 0.1)
    with pytest.raises(RecipeError, match=r"component 'quality': the normaliser takes Segments .* gives Sequence"):
        Component("quality", Fixed(Sequence), CREDITS["last_token"], location_aware)
    with pytest.raises(RecipeError, match=r"the normaliser takes Sequence or Segments .* gives Tokens"):
        Component("quality", Fixed(Tokens), CREDITS["as_is"], Scalar(0.0, 1.0))
    shaping = Elementwise(torch.sigmoid, takes=(Sequence,))
    with pytest.raises(RecipeError, match=r"component 'quality': the shaping takes Sequence but .* gives Tokens"):
        Component("quality", Fixed(Tokens), CREDITS["as_is"], shaping=shaping)
    component = Component("quality", Fixed(Tokens), CREDITS["as_is"])
    with pytest.raises(RecipeError, match="distinct names"):
        Reward((component, component))
    with pytest.raises(RecipeError, match="at least one component"):
        Reward(())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_stops_the_run(value: float) -> None:
    with pytest.raises(NumericsError, match="response 0"):
        Reward((Component("a", Fixed(Tokens, value=value), CREDITS["as_is"]),))(BATCH)


def test_running_statistics_stay_as_they_are_in_evaluation_and_survive_a_restart() -> None:
    def reward() -> Reward:
        location_aware = LocationAware(0.0, 0.0, 0.0, 1.0, 0.1)
        return Reward((Component("a", Fixed(Segments), CREDITS["even_split"], location_aware, Elementwise(abs)),))

    first, second = reward(), reward()
    first(BATCH)
    first(BATCH, update=False)
    state = first.state_dict()
    assert state["a"]["shaping"] == {"seen": 1}
    assert state["a"]["normaliser"]["segments"] == 6
    second.load_state_dict(state)
    second(BATCH)
    assert second.state_dict()["a"]["shaping"] == {"seen": 2}
