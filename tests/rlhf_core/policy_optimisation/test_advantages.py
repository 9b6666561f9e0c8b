"""Advantages, returns, whitening and KL estimators against sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.policy_optimisation.advantages import gae, masked_mean, rewards_to_go, whiten
from rlhf_core.policy_optimisation.kl import kl_tokens


def prefix_mask(lengths: list[int], width: int) -> torch.Tensor:
    return torch.arange(width)[None] < torch.tensor(lengths)[:, None]


def junk(lengths: list[int], width: int, seed: int) -> torch.Tensor:
    """Random values, also on padding, where they must not matter."""
    return torch.randn(len(lengths), width, generator=torch.Generator().manual_seed(seed))


LENGTHS = st.lists(st.integers(0, 6), min_size=1, max_size=4)
SHARE = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@settings(max_examples=80, deadline=None)
@given(LENGTHS, SHARE, SHARE, st.integers(0, 1000))
def test_gae_is_the_discounted_sum_of_td_errors(lengths: list[int], gamma: float, lam: float, seed: int) -> None:
    rewards, values = junk(lengths, 6, seed), junk(lengths, 6, seed + 1)
    advantages = gae(rewards, values, prefix_mask(lengths, 6), gamma, lam)
    for i, n in enumerate(lengths):
        r, v = rewards[i, :n].tolist(), [*values[i, :n].tolist(), 0.0]
        deltas = [r[t] + gamma * v[t + 1] - v[t] for t in range(n)]
        naive = [sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]
        assert advantages[i].tolist() == pytest.approx(naive + [0.0] * (6 - n), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, SHARE, st.integers(0, 1000))
def test_rewards_to_go_are_discounted_sums(lengths: list[int], gamma: float, seed: int) -> None:
    rewards = junk(lengths, 6, seed)
    returns = rewards_to_go(rewards, prefix_mask(lengths, 6), gamma)
    for i, n in enumerate(lengths):
        naive = [sum(gamma ** (k - t) * float(rewards[i, k]) for k in range(t, n)) for t in range(n)]
        assert returns[i].tolist() == pytest.approx(naive + [0.0] * (6 - n), abs=1e-5)


def test_gae_with_lambda_one_plus_values_is_the_return() -> None:
    lengths = [5, 1, 0, 3]
    rewards, values, mask = junk(lengths, 5, 0), junk(lengths, 5, 1), prefix_mask(lengths, 5)
    total = (gae(rewards, values, mask, 1.0, 1.0) + values) * mask
    torch.testing.assert_close(total, rewards_to_go(rewards, mask), atol=1e-5, rtol=1e-5)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, st.integers(0, 1000))
def test_whitening_is_over_all_real_tokens_of_the_batch(lengths: list[int], seed: int) -> None:
    values, mask = 3 + 5 * junk(lengths, 6, seed), prefix_mask(lengths, 6)
    white = whiten(values, mask)
    assert white[~mask].abs().sum() == 0
    real = values[mask].double().tolist()
    if len(real) < 2:
        assert white.abs().sum() == 0
        return
    mean = sum(real) / len(real)
    std = math.sqrt(sum((x - mean) ** 2 for x in real) / len(real))
    assert white[mask].tolist() == pytest.approx([(x - mean) / std for x in real], abs=1e-3)
    assert float(masked_mean(white, mask)) == pytest.approx(0.0, abs=1e-5)


def test_constant_and_empty_batches_whiten_to_zero() -> None:
    mask = prefix_mask([3, 2], 4)
    assert whiten(torch.full((2, 4), 0.1), mask).abs().max() < 1e-3
    assert whiten(torch.randn(2, 4), torch.zeros(2, 4).bool()).abs().sum() == 0
    assert float(masked_mean(torch.randn(2, 4), torch.zeros(2, 4).bool())) == 0.0
    assert gae(torch.zeros(2, 0), torch.zeros(2, 0), torch.zeros(2, 0).bool()).shape == (2, 0)


def test_kl_estimators_by_hand() -> None:
    logprobs, reference = torch.tensor([[-1.0, -3.0, 5.0]]), torch.tensor([[-1.5, -2.0, -math.inf]])
    mask = torch.tensor([[True, True, False]])
    assert kl_tokens(logprobs, reference, mask, "k1").tolist() == [[0.5, -1.0, 0.0]]
    assert kl_tokens(logprobs, reference, mask, "k2").tolist() == [[0.125, 0.5, 0.0]]
    k3 = [math.exp(-0.5) - 1 + 0.5, math.exp(1.0) - 1 - 1.0, 0.0]
    assert kl_tokens(logprobs, reference, mask, "k3")[0].tolist() == pytest.approx(k3)
    with pytest.raises(RecipeError, match="k1, k2, k3"):
        kl_tokens(logprobs, reference, mask, "k4")


def test_k1_and_k3_are_unbiased_for_the_exact_kl() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    exact = float((p * (p / q).log()).sum())
    mask = torch.ones(1, 3).bool()
    for estimator in ("k1", "k3"):
        expectation = float((p * kl_tokens(p.log()[None], q.log()[None], mask, estimator)[0]).sum())
        assert expectation == pytest.approx(exact, abs=1e-6)
