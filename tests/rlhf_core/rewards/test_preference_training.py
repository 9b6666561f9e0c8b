"""Preference training: mean aggregation at segment ends, the pair loss, and the read-out's agreement with it."""

from __future__ import annotations

import math

import pytest
import torch
from tiny_models import PAD, batch_of, random_rows, tiny_scalar_model

from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.errors import RecipeError
from rlhf_core.models.packing import pad
from rlhf_core.rewards.aggregation import AGGREGATIONS, Aggregation
from rlhf_core.rewards.preference_losses import bradley_terry_loss
from rlhf_core.rewards.preference_training import (
    SegmentedSequence,
    aggregate,
    head_evaluations,
    pair_loss,
)
from rlhf_core.rewards.readout import RewardModelScorer
from rlhf_core.segmentation.segmenters import Bandit, Entropy, NGram
from rlhf_core.signals import Segments

PROMPTS = random_rows(1, [3, 5, 1, 4], ended=False)
ROWS = random_rows(2, [6, 3, 1, 5])
ENDS = [[1, 3, 4], [0, 1], [0], [3]]


def sequences() -> list[SegmentedSequence]:
    pairs = zip(PROMPTS, ROWS, ENDS, strict=True)
    return [SegmentedSequence(EncodedSequence(prompt, row), ends) for prompt, row, ends in pairs]


def pair_evaluations(*of: object) -> tuple[torch.Tensor, torch.Tensor]:
    return head_evaluations(*of)["reward"]


def naive_values(model: torch.nn.Module, prompt: list[int], row: list[int]) -> list[float]:
    """The head at every response token of one unpadded sequence."""
    ids = torch.tensor([[*prompt, *row]])
    hidden = model.backbone(input_ids=ids).last_hidden_state[0]  # type: ignore[operator]
    return (hidden @ model.heads["reward"].weight[0])[len(prompt) :].tolist()  # type: ignore[index]


def test_evaluations_are_means_at_segment_ends() -> None:
    model = tiny_scalar_model()
    with torch.no_grad():
        found, ends = aggregate(model, sequences(), PAD)
    e, values = found.total, found.worth
    for i, (prompt, row, expected_ends) in enumerate(zip(PROMPTS, ROWS, ENDS, strict=True)):
        naive = naive_values(model, prompt, row)
        read = [naive[end] for end in expected_ends]
        assert float(e[i]) == pytest.approx(sum(read) / len(read), abs=1e-5)
        assert values[i, : len(read)].tolist() == pytest.approx(read, abs=1e-5)
        assert values[i, len(read) :].abs().sum() == 0
        assert ends[i].tolist() == expected_ends + [-1] * (3 - len(expected_ends))


def test_pair_loss_is_the_sum_over_pairs_and_counts_strictly() -> None:
    model = tiny_scalar_model()
    rows = sequences()
    loss, count, sums = pair_loss(model, rows[:2], rows[2:], PAD)
    with torch.no_grad():
        e = aggregate(model, rows, PAD)[0].total
    naive = sum(-math.log(1 / (1 + math.exp(-float(e[i] - e[i + 2])))) for i in range(2))
    assert float(loss.detach()) == pytest.approx(naive, rel=1e-5)
    assert count == 2.0
    assert sums["margin"] == pytest.approx(float((e[:2] - e[2:]).sum()), abs=1e-4)
    assert sums["accuracy"] == float((e[:2] > e[2:]).sum())
    tied = pair_loss(model, rows[:1], rows[:1], PAD)
    assert tied[2]["accuracy"] == 0.0
    assert float(tied[0].detach()) == pytest.approx(math.log(2))


def pairs_of_one_prompt() -> tuple[list[SegmentedSequence], list[SegmentedSequence]]:
    """Chosen and rejected responses of different lengths, one of them a single token, to the same prompts."""
    sides = ((ROWS, ENDS), (ROWS[::-1], ENDS[::-1]))
    chosen, rejected = (
        [SegmentedSequence(EncodedSequence(p, r), e) for p, r, e in zip(PROMPTS, rows, ends, strict=True)]
        for rows, ends in sides
    )
    return chosen, rejected


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_packing_changes_neither_evaluations_nor_gradients(kind: str) -> None:
    chosen, rejected = pairs_of_one_prompt()
    aggregation = Aggregation(kind, dim=4)
    results = []
    for padding in (False, True):
        model = tiny_scalar_model(projections=aggregation.projections)
        if padding:
            pad(model.backbone)
        good, bad = pair_evaluations(model, chosen, rejected, PAD, aggregation)
        bradley_terry_loss(good, bad).sum().backward()
        results.append([good.detach(), bad.detach(), *(p.grad for p in model.parameters())])
    for packed, padded in zip(*results, strict=True):
        torch.testing.assert_close(packed, padded, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("microbatch", [1, 3, 64])
def test_the_readout_reads_the_head_at_segment_ends(microbatch: int) -> None:
    model = tiny_scalar_model()
    entropies = [[0.0, 2.0, 0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 9.0], [0.0], [2.0, 2.0, 0.0, 0.0, 0.0]]
    batch = batch_of(PROMPTS, ROWS, entropies)
    scorer = RewardModelScorer(model, Entropy(1.0), microbatch=microbatch)
    signal = scorer.score(batch)
    assert isinstance(signal, Segments)
    spans = [[(0, 1), (1, 4), (4, 5)], [(0, 2)], [(0, 1)], [(0, 1), (1, 4)]]
    for i, expected in enumerate(spans):
        assert signal.segmentation.spans(i) == expected
        naive = naive_values(model, PROMPTS[i], ROWS[i])
        read = signal.values[i, : len(expected)].tolist()
        assert read == pytest.approx([naive[end - 1] for _, end in expected], abs=1e-5)


def test_the_aggregate_is_the_mean_over_segments_and_bandit_reads_eos() -> None:
    model = tiny_scalar_model()
    batch = batch_of(PROMPTS, ROWS)
    mean = RewardModelScorer(model, NGram(2), "aggregate").score(batch)
    values = RewardModelScorer(model, NGram(2)).score(batch)
    assert isinstance(values, Segments)
    for i in range(4):
        count = int(values.segmentation.count[i])
        assert float(mean.values[i]) == pytest.approx(float(values.values[i, :count].mean()), abs=1e-6)
    bandit = RewardModelScorer(model, Bandit(), "aggregate").score(batch)
    last = [naive_values(model, p, r)[-1] for p, r in zip(PROMPTS, ROWS, strict=True)]
    assert bandit.values.tolist() == pytest.approx(last, abs=1e-5)
    with pytest.raises(RecipeError, match="unknown read-out"):
        RewardModelScorer(model, Bandit(), "mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(("read", "kind"), [("aggregate", "sum"), ("difference", "mean"), ("weighted", "mean")])
def test_read_outs_that_need_more_than_token_values_refuse_them(read: str, kind: str) -> None:
    scorer = RewardModelScorer(tiny_scalar_model(), NGram(2), read, aggregation=Aggregation(kind))
    batch = batch_of(PROMPTS, ROWS)
    with pytest.raises(RecipeError, match=f"the read-out '{read}' of a reward model of aggregation '{kind}' is not"):
        scorer.read_out(scorer.token_values(batch), batch.responses)
