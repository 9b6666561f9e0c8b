"""Diagnostics of each step: entropy, spreads, repetition, the gap since the rollout, and seconds by phase."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import EOS, POLICIES, batch_of, random_rows, responses_of

from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.diagnostics import describe, repetition_rate
from rlhf_core.policy_optimisation.experience import Experience
from rlhf_core.policy_optimisation.learner import GAPS, Learner
from rlhf_core.policy_optimisation.objectives import truncated_importance
from rlhf_core.rewards.composition import RewardOutput

PROMPTS = random_rows(1, [3, 5, 2, 4], ended=False)


def experience_of(lengths: list[int], seed: int = 0) -> Experience:
    """Random numbers for responses of the given lengths."""
    batch = batch_of([[5]] * len(lengths), random_rows(seed, lengths))
    mask = batch.responses.mask
    if not mask.shape[1]:
        wide = torch.zeros(len(lengths), 1)
        batch = replace(batch, responses=replace(batch.responses, ids=wide.long(), mask=wide.bool()))
        mask = batch.responses.mask
    generator = torch.Generator().manual_seed(seed)
    draws = [torch.randn(mask.shape, generator=generator) * mask for _ in range(6)]
    batch = replace(batch, logprobs=draws[0], reference_logprobs=draws[1], entropies=draws[2].abs())
    reward = RewardOutput(draws[3], {"part": draws[3]}, {})
    return Experience(batch, reward, draws[3], draws[4], draws[5], draws[3].sum(dim=1))


def test_padding_counts_neither_in_the_engine_s_gap_nor_in_the_importance_weights() -> None:
    experience = experience_of([3, 1])
    batch, mask = experience.batch, experience.batch.responses.mask
    assert batch.logprobs is not None
    gap = torch.tensor([[0.0, 0.3, -0.9], [0.6, 77.0, -88.0]])
    batch = replace(batch, engine_logprobs=batch.logprobs - gap)
    importance = truncated_importance(batch.logprobs, batch.logprobs - gap, mask, 1.5)
    found = describe(replace(experience, batch=batch, importance=importance), with_critic=False)
    assert found["engine_gap"] == pytest.approx((0.0 + 0.3 + 0.9 + 0.6) / 4, abs=1e-6)
    assert found["engine_gap_max"] == pytest.approx(0.9, abs=1e-6)
    assert found["importance"] == pytest.approx((1.0 + math.exp(0.3) + math.exp(-0.9) + 1.5) / 4, abs=1e-6)
    assert found["importance_capped"] == 0.25
    assert "importance" not in describe(replace(experience, batch=batch), with_critic=False)


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), seed=st.integers(0, 3))
def test_diagnostics_are_those_of_a_naive_reference_also_for_empty_responses(lengths: list[int], seed: int) -> None:
    experience = experience_of(lengths, seed)
    found = describe(experience, with_critic=True)
    tokens = [(i, t) for i, n in enumerate(lengths) for t in range(n)]

    def values(of: torch.Tensor | None) -> torch.Tensor:
        assert of is not None
        return torch.tensor([float(of[i, t]) for i, t in tokens] or [0.0])

    assert found["entropy"] == pytest.approx(float(values(experience.batch.entropies).mean()), abs=1e-5)
    for name, tensor in (("advantage", experience.advantages), ("return", experience.returns)):
        assert found[f"{name}_mean"] == pytest.approx(float(values(tensor).mean()), abs=1e-5)
        assert found[f"{name}_std"] == pytest.approx(float(values(tensor).std(correction=0)), abs=1e-5)
    if len(tokens) > 1:
        error = (values(experience.returns) - values(experience.values)) ** 2
        expected = 1 - float(error.mean()) / float(values(experience.returns).var(correction=0))
        assert found["explained_variance"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    paid = sum(float(experience.reward.total[i, t]) for i, t in tokens)
    assert found["reward"] == pytest.approx(paid / len(lengths), rel=1e-6, abs=1e-6)
    kl = values(experience.batch.logprobs) - values(experience.batch.reference_logprobs)
    assert found["kl"] == pytest.approx(float(kl.sum()) / len(lengths), abs=1e-5)
    assert found["response_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert found["response_length_max"] == max(lengths)
    assert all(value == value and abs(value) < float("inf") for value in found.values())


def test_repetition_counts_what_stood_earlier_in_the_same_response() -> None:
    assert repetition_rate(responses_of([[5, 6, 7, 5, 6, 7, 5], [5, 6, 7]])) == pytest.approx(2 / 6)
    assert repetition_rate(responses_of([[9] * 6])) == pytest.approx(3 / 4)
    assert repetition_rate(responses_of([[], [3], [3, 3]], width=2)) == 0


def test_the_gap_is_of_the_first_minibatch_before_it_is_learned_from(kind: str) -> None:
    policy = POLICIES[kind](1)
    batch = batch_of(PROMPTS, random_rows(2, [3, 1, 4, 2]))
    mask = batch.responses.mask
    inputs = (batch.prompt_ids, batch.prompt_mask, batch.responses.ids, mask)
    with torch.no_grad():
        now = policy.statistics(*inputs).logprobs
    shift = 0.25 * mask
    shift[2, 1] = -0.75
    batch = replace(batch, logprobs=now + shift, reference_logprobs=now)
    zeros = torch.zeros(mask.shape)
    experience = Experience(batch, RewardOutput(zeros, {}, {}), zeros, 1.0 * mask, zeros, zeros.sum(dim=1))
    config = optimiser_config(
        "reinforce_plus_plus", iterations=1, rollout_batch=4, minibatch=4, microbatch=2, epochs=3, actor_lr=1e-2
    )
    metrics = Learner(policy, None, config).update(experience, torch.Generator().manual_seed(0), 0.0)
    tokens = int(mask.sum())
    assert metrics["logprob_gap"] == pytest.approx((0.25 * (tokens - 1) + 0.75) / tokens, abs=1e-4)
    assert metrics["logprob_gap_max"] == pytest.approx(0.75, abs=1e-4)
    assert set(GAPS) <= set(metrics)
    assert EOS in batch.responses.ids
