"""The hierarchical gate: its order is exact before KL, and what KL does to it is counted."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import batch_of, random_rows
from torch import Tensor

from rlhf_core.credit import CREDITS
from rlhf_core.errors import NumericsError, RecipeError
from rlhf_core.rewards.combinations import Gate, HierarchicalGate, gate_metrics
from rlhf_core.rewards.composition import Component, Reward
from rlhf_core.rollout import RolloutBatch
from rlhf_core.shaping.choices import build_shaping
from rlhf_core.signals import Sequence, Tokens

LENGTHS = (4, 1, 7, 3, 2, 5)
BATCH = batch_of([[5, 6]] * len(LENGTHS), random_rows(0, LENGTHS))


@dataclass
class Given:
    """Gives fixed values, one per response or per token."""

    values: Tensor

    @property
    def gives(self) -> type[Sequence] | type[Tokens]:
        return Sequence if self.values.dim() == 1 else Tokens

    def score(self, batch: RolloutBatch) -> Sequence | Tokens:
        return self.gives(self.values)


def gated(holistic: Tensor, aspect: Tensor, threshold: float, weight: float, *, sigmoid: bool = True) -> Reward:
    shaping = build_shaping({"kind": "sigmoid"}) if sigmoid else None
    return Reward(
        (
            Component("holistic", Given(holistic), CREDITS["last_token"], weight=weight),
            Component("aspect", Given(aspect), CREDITS["as_is"], shaping=shaping),
        ),
        clamp=None,
        combination=HierarchicalGate("holistic", threshold, weight),
    )


def near(threshold: float) -> st.SearchStrategy[float]:
    """Values on both sides of a threshold, floats next to it among them."""
    edge = torch.tensor(threshold, dtype=torch.float32)
    beside = [float(torch.nextafter(edge, torch.tensor(end))) for end in (-10.0, 10.0)]
    return st.one_of(st.floats(-5, 5, width=32), st.sampled_from([*beside, float(edge)]))


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from([0.6, 0.5, -0.3, 0.0]), st.sampled_from([5.0, 3.0, 0.1, 1.0]))
def test_every_total_above_the_gate_exceeds_every_total_below_it(
    data: st.DataObject, threshold: float, weight: float
) -> None:
    holistic = torch.tensor(data.draw(st.lists(near(threshold), min_size=6, max_size=6)))
    aspect = torch.randn(
        BATCH.responses.ids.shape, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    )
    reward = gated(holistic, 30 * aspect, threshold, weight)
    output = reward(BATCH)
    assert isinstance(reward.combination, HierarchicalGate)
    above, totals = reward.combination.above(output.parts), output.sequence_totals()
    assert not above.any() or above.all() or totals[above].min() > totals[~above].max()
    assert gate_metrics(output, reward.combination, torch.zeros(6))["gate/violations"] == 0


def test_below_the_threshold_the_holistic_reward_alone_is_paid_on_the_last_real_token() -> None:
    holistic = torch.tensor([0.7, 0.5, 0.6, -1.0, 2.0, 0.59])
    output = gated(holistic, torch.zeros(BATCH.responses.ids.shape), 0.6, 5.0)(BATCH)
    for row, (value, length) in enumerate(zip(holistic.tolist(), LENGTHS, strict=True)):
        paid = output.total[row]
        extra = 0.5 if value >= 0.6 - 1e-6 else 0.0
        assert paid[length - 1] == pytest.approx(5 * value + extra, rel=1e-6)
        assert torch.equal(paid[: length - 1], torch.full((length - 1,), extra))
        assert not paid[length:].any()


def test_an_aspect_that_pays_below_zero_above_the_gate_stops_the_run() -> None:
    reward = gated(torch.full((6,), 2.0), -torch.ones(BATCH.responses.ids.shape), 0.6, 5.0, sigmoid=False)
    with pytest.raises(NumericsError, match=r"'aspect' pays -1 above the gate.*sigmoid"):
        reward(BATCH)


def test_violations_after_kl_are_the_pairs_that_it_turns_around() -> None:
    holistic = torch.tensor([1.0, 1.0, 0.0, 0.0, -1.0, 2.0])
    reward = gated(holistic, torch.zeros(BATCH.responses.ids.shape), 0.6, 1.0)
    output = reward(BATCH)
    assert isinstance(reward.combination, HierarchicalGate)
    penalty = torch.tensor([50.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    found = gate_metrics(output, reward.combination, penalty)
    totals = (output.sequence_totals() - penalty).tolist()
    naive = sum(totals[a] <= totals[b] for a in (0, 1, 5) for b in (2, 3, 4))
    assert (found["gate/pairs"], found["gate/violations"]) == (9, naive) == (9, 3)
    assert found["gate/share_above"] == 0.5


def test_a_quantile_threshold_is_of_the_pure_samples() -> None:
    weights = {"h": 2.0}
    assert Gate("h", {"quantile": 0.7}).build(weights, torch.arange(11.0)).threshold == pytest.approx(7.0)
    assert Gate("h", 0.6).build(weights, None) == HierarchicalGate("h", 0.6, 2.0)
    with pytest.raises(RecipeError, match="name a 'selection'"):
        Gate("h", {"quantile": 0.7}).build(weights, None)
    for wrong in ({"quantile": 1.0}, {"share": 0.3}, float("nan")):
        with pytest.raises(RecipeError, match="threshold"):
            Gate("h", wrong)
