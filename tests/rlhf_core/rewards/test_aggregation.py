"""Aggregations: weighted sums of segment rewards, against the formulas written out."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiny_models import PAD, batch_of, random_rows, tiny_scalar_model

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import RecipeError
from rlhf_core.models.reward_model import SegmentStates
from rlhf_core.rewards.aggregation import AGGREGATIONS, Aggregation, build_aggregation
from rlhf_core.rewards.preference_training import aggregate
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import Bandit, NGram
from rlhf_core.segmentation.segments import SegmentedSequence
from rlhf_core.signals import Segments, Sequence

DIM = 8


def states(seed: int = 0, counts: tuple[int, ...] = (3, 1, 0, 5)) -> SegmentStates:
    generator = torch.Generator().manual_seed(seed)
    width = max(counts)
    mask = torch.arange(width)[None] < torch.tensor(counts)[:, None]
    heads = {}
    for name in ("query", "key"):
        heads[name] = torch.nn.Linear(4, DIM, bias=False)
        torch.nn.init.normal_(heads[name].weight, generator=generator)
    values = torch.where(mask, torch.randn(len(counts), width, generator=generator), 0.0)
    hidden = torch.randn(len(counts), width, 4, generator=generator)
    return SegmentStates(values, mask, torch.randn(len(counts), generator=generator), hidden, heads)


def turn(vector: list[float], position: int, base: float = 1000.0) -> list[float]:
    """Rotary embedding pair by pair, as appendix A.2 prints it (theta_t = base^(-2(t-1)/d), t from 1)."""
    turned = []
    for t in range(1, len(vector) // 2 + 1):
        angle = position * base ** (-2 * (t - 1) / len(vector))
        x, y = vector[2 * t - 2], vector[2 * t - 1]
        turned += [x * math.cos(angle) - y * math.sin(angle), x * math.sin(angle) + y * math.cos(angle)]
    return turned


def naive(kind: str, found: SegmentStates, row: int, base: float) -> tuple[list[float], list[float]]:
    """(rewards, weights) of one row, loop by loop."""
    n = int(found.mask[row].sum())
    values = found.values[row, :n].tolist()
    before = [base, *values[:-1]]
    rewards = [v - b for v, b in zip(values, before, strict=False)] if kind.startswith("differential") else values
    keys = [turn(k, i) for i, k in enumerate(found.project("key")[row, :n].tolist(), start=1)]
    queries = [turn(q, i) for i, q in enumerate(found.project("query")[row, :n].tolist(), start=1)]

    def softmax(query: list[float]) -> list[float]:
        scores = [math.exp(sum(a * b for a, b in zip(query, key, strict=True))) for key in keys]
        return [score / sum(scores) for score in scores]

    if kind.endswith("attention"):
        return rewards, softmax(queries[-1])
    if kind == "preference_transformer":
        received = [softmax(query) for query in queries]
        return rewards, [sum(weights[i] for weights in received) / n for i in range(n)]
    return rewards, [1.0 if kind == "sum" else 1 / n] * n


@pytest.mark.parametrize("base", ["prompt", "zero"])
@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_an_aggregation_is_its_formula(kind: str, base: str) -> None:
    found = states()
    with torch.no_grad():
        result = Aggregation(kind, dim=DIM, base=base)(found)
    for row, count in enumerate((3, 1, 0, 5)):
        if not count:
            assert float(result.total[row]) == 0.0
            continue
        rewards, weights = naive(kind, found, row, float(found.base[row]) if base == "prompt" else 0.0)
        assert result.rewards[row, :count].tolist() == pytest.approx(rewards, abs=1e-4)
        assert result.weights[row, :count].tolist() == pytest.approx(weights, abs=1e-4)
        total = sum(w * r for w, r in zip(weights, rewards, strict=True))
        assert float(result.total[row]) == pytest.approx(total, abs=1e-4)
    assert torch.isfinite(result.weights).all()
    assert result.weights[~found.mask].abs().sum() == 0
    torch.testing.assert_close(result.contributions.sum(dim=1), result.total)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("differential_atention", "did you mean 'differential_attention'"),
        ({"kind": "mean", "dimension": 4}, "unknown setting 'dimension'"),
        ({"dim": 4}, "'kind' is missing"),
        ({"kind": "value_attention", "dim": 3}, "dim is 3; it must be even"),
        ({"kind": "mean", "base": "sft"}, "base is 'sft'"),
    ],
)
def test_mistakes_are_named(spec: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        build_aggregation(spec)


PROMPTS = random_rows(1, [3, 5, 1, 4], ended=False)
ROWS = random_rows(2, [6, 3, 1, 5])
ENDS = [[1, 3, 4], [0, 1], [0], [3]]
ATTENTION = Aggregation("differential_attention", dim=DIM)


def sequences() -> list[SegmentedSequence]:
    pairs = zip(PROMPTS, ROWS, ENDS, strict=True)
    return [SegmentedSequence(EncodedSequence(prompt, row), ends) for prompt, row, ends in pairs]


def test_weighted_rewards_add_up_to_the_aggregate_that_training_sees() -> None:
    model = tiny_scalar_model(projections=ATTENTION.projections)
    batch = batch_of(PROMPTS, ROWS)
    options: dict[str, Any] = {"aggregation": ATTENTION, "microbatch": 2}
    weighted = RewardModelScorer(model, NGram(2), "weighted", **options).score(batch)
    total = RewardModelScorer(model, NGram(2), "aggregate", **options).score(batch)
    assert isinstance(weighted, Segments)
    assert isinstance(total, Sequence)
    torch.testing.assert_close(weighted.values.sum(dim=1), total.values)
    ends = [[e for e in row if e >= 0] for row in weighted.segmentation.ends.tolist()]
    trained = [SegmentedSequence(s.sequence, e) for s, e in zip(sequences(), ends, strict=True)]
    with torch.no_grad():
        torch.testing.assert_close(aggregate(model, trained, PAD, ATTENTION)[0].total, total.values)


def test_differences_of_a_response_model_add_up_to_its_last_value_over_the_base() -> None:
    """Res2Sent: every sentence's difference has weight 1, whatever the model aggregates."""
    model = tiny_scalar_model()
    batch = batch_of(PROMPTS, ROWS)
    values = RewardModelScorer(model, NGram(2)).score(batch)
    for base in ("prompt", "zero"):
        found = RewardModelScorer(model, NGram(2), "difference", base=base).score(batch)
        assert isinstance(found, Segments)
        assert isinstance(values, Segments)
        for i in range(4):
            n = int(found.segmentation.count[i])
            start = 0.0
            if base == "prompt":
                parts = (batch.prompt_ids, batch.prompt_mask, batch.responses.ids, batch.responses.mask)
                start = float(model(*(part[i : i + 1] for part in parts), shift=1)[0, 0])
            expected = float(values.values[i, n - 1]) - start
            assert float(found.values[i].sum()) == pytest.approx(expected, abs=1e-5)


def test_end_tokens_need_sentences() -> None:
    with pytest.raises(RecipeError, match="segmenter of kind sat"):
        RewardModelScorer(tiny_scalar_model(), Bandit(), end_token=3)
