"""Advantages, returns, whitening and KL estimators against sums written out."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.policy_optimisation.advantages import (
    gae,
    group_relative,
    leave_one_out,
    masked_mean,
    on_tokens,
    rewards_to_go,
    whiten,
)
from rlhf_core.policy_optimisation.kl import KLCoefficient, kl_tokens


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


@pytest.mark.parametrize("value", [7.3, -1234.567, 0.1, 1e-6])
@pytest.mark.parametrize("shape", [(1, 3), (32, 64), (128, 1024)])
def test_equal_values_whiten_to_zero_whatever_their_mean_rounds_to(value: float, shape: tuple[int, int]) -> None:
    mask = torch.ones(shape).bool()
    mask[:, -1] = False
    assert not whiten(torch.full(shape, value), mask).any()


def test_what_deviates_is_whitened_and_what_is_not_finite_shows() -> None:
    values, mask = 7.3 + 1e-3 * torch.randn(4, 8, generator=torch.Generator().manual_seed(0)), torch.ones(4, 8).bool()
    mean = values.mean()
    plain = (values - mean) * torch.rsqrt(((values - mean) ** 2).mean() + 1e-8)
    assert torch.equal(whiten(values, mask), plain)
    assert whiten(torch.tensor([[math.nan, 1.0]]), torch.ones(1, 2).bool()).isnan().all()


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


SCORES = st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 30)), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(SCORES, st.sampled_from(["population", "sample", "none"]))
def test_group_estimators_are_those_of_a_loop_over_groups(rows: list[tuple[int, int]], std: str) -> None:
    groups, scores = torch.tensor([g for g, _ in rows]), torch.tensor([s / 10 for _, s in rows])
    relative, left_out = group_relative(scores, groups, std), leave_one_out(scores, groups)
    for i, (group, own) in enumerate(rows):
        members = [s / 10 for g, s in rows if g == group]
        others = [s / 10 for j, (g, s) in enumerate(rows) if g == group and j != i]
        mean, freedom = sum(members) / len(members), len(members) - (std == "sample")
        deviation = math.sqrt(sum((s - mean) ** 2 for s in members) / max(freedom, 1))
        expected = own / 10 - mean if std == "none" else (own / 10 - mean) / deviation if deviation > 1e-9 else 0.0
        assert float(relative[i]) == pytest.approx(expected, abs=1e-4)
        assert float(left_out[i]) == pytest.approx(own / 10 - sum(others) / len(others) if others else 0.0, abs=1e-4)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1000), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_an_affine_reshaping_leaves_group_relative_advantages_alone(seed: int, a: float, b: float) -> None:
    scores = torch.randn(20, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    groups = torch.arange(20) // 5
    torch.testing.assert_close(
        group_relative(a * scores + b, groups), group_relative(scores, groups), atol=1e-5, rtol=1e-5
    )


def test_equal_scores_of_a_group_give_no_advantage() -> None:
    groups = torch.arange(10) // 5
    for constant in (0.0, 0.1, 1e4 / 3):
        assert group_relative(torch.full((10,), constant), groups).abs().max() == 0
        assert leave_one_out(torch.full((10,), constant), groups).abs().max() < 1e-9
    with pytest.raises(RecipeError, match="population, sample, none"):
        group_relative(torch.zeros(2), torch.zeros(2), "ddof")


def test_a_responses_number_lands_on_its_real_tokens_only() -> None:
    assert on_tokens(torch.tensor([2.0, 3.0]), prefix_mask([2, 0], 3)).tolist() == [[2.0, 2.0, 0.0], [0.0, 0.0, 0.0]]


def test_the_adaptive_coefficient_follows_its_target() -> None:
    coefficient = KLCoefficient(0.2, target=6.0, horizon=1000)
    coefficient.update(6.6, 100)  # 10 percent above
    assert coefficient.value == pytest.approx(0.2 * (1 + 0.1 * 100 / 1000))
    start = coefficient.value
    coefficient.update(600.0, 100)  # clipped at 20 percent
    assert coefficient.value == pytest.approx(start * 1.02)
    coefficient.update(0.0, 100)
    assert coefficient.value == pytest.approx(start * 1.02 * 0.98)
    other = KLCoefficient(0.7, target=6.0)
    other.load_state_dict(coefficient.state_dict())
    assert other.value == coefficient.value
    fixed = KLCoefficient(0.1)
    fixed.update(100.0, 100)
    assert fixed.value == 0.1


def test_every_estimator_by_hand() -> None:
    rewards, values = torch.tensor([[1.0, 0.0, 2.0, 9.0]]), torch.tensor([[0.5, 1.0, -1.0, 9.0]])
    mask = torch.tensor([[True, True, True, False]])
    # deltas 1 + .5 - .5, 0 - .5 - 1 and 2 + 1, each a quarter of the next advantage on top
    assert gae(rewards, values, mask, 0.5, 0.5).tolist() == [[0.8125, -0.75, 3.0, 0.0]]
    assert rewards_to_go(rewards, mask, 0.5).tolist() == [[1.5, 1.0, 2.0, 0.0]]
    whitened = whiten(torch.tensor([[1.0, 2.0, 3.0, 9.0]]), mask)
    assert whitened.tolist()[0] == pytest.approx([-(1.5**0.5), 0.0, 1.5**0.5, 0.0], abs=1e-3)
    scores, groups = torch.tensor([1.0, 3.0, 2.0, 2.0]), torch.tensor([0, 0, 1, 1])
    for std, expected in (("population", 1.0), ("sample", 0.5**0.5), ("none", 1.0)):
        found = group_relative(scores, groups, std).tolist()
        assert found == pytest.approx([-expected, expected, 0.0, 0.0], abs=1e-5)
    assert leave_one_out(torch.tensor([1.0, 2.0, 6.0]), torch.tensor([4, 4, 4])).tolist() == [-3.0, -1.5, 4.5]
