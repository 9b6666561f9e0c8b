"""Advantages, returns, whitening, KL and losses against sums written out; padding and empty rows change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad

from rlhf_core.policy_optimisation.advantages import (
    ADVANTAGES,
    GROUP_STDS,
    EstimatorInputs,
    gae,
    group_relative,
    leave_one_out,
    masked_mean,
    rewards_to_go,
    value_targets,
    whiten,
)
from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.kl import KL_ESTIMATORS, KLCoefficient, kl_tokens
from rlhf_core.policy_optimisation.objectives import (
    LOSS_AVERAGES,
    OBJECTIVES,
    ObjectiveInputs,
    TokenObjective,
    clipped_surrogate,
    ordered_pairs,
    policy_gradient,
    preference_loss,
    rlmec_objective,
    truncated_importance,
    value_loss,
)

QUICK = settings(max_examples=50, deadline=None)
LENGTHS = st.lists(st.integers(0, 4), min_size=1, max_size=4)
SEEDS = st.integers(0, 1000)
GAMMA, LAM, CLIP = 0.9, 0.8, 0.2
CONFIG: Any = SimpleNamespace(gamma=GAMMA, lam=LAM, group_std="population", clip=CLIP, loss_average="tokens")
Numbers = list[float]


def prefix(lengths: list[int], width: int = 4) -> Tensor:
    return torch.arange(width)[None] < torch.tensor(lengths, dtype=torch.long)[:, None]


def draws(lengths: list[int], seed: int, count: int = 3) -> list[Tensor]:
    """Random values, also on padding, where they must not matter."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(len(lengths), 4, generator=generator) for _ in range(count)]


def later(values: Numbers, discount: float) -> Numbers:
    """The discounted sum of each value and those behind it."""
    return [sum(discount ** (k - t) * values[k] for k in range(t, len(values))) for t in range(len(values))]


def capped(ratio: float, factor: float) -> float:
    return min(ratio * factor, min(max(ratio, 1 - CLIP), 1 + CLIP) * factor)


def squares(v: float, old: float, target: float) -> float:
    return max((v - target) ** 2, (old + min(max(v - old, -CLIP), CLIP) - target) ** 2)


def each(formula: Callable[[float, float, float], float]) -> Callable[[Numbers, Numbers, Numbers], Numbers]:
    return lambda a, b, c: [formula(*one) for one in zip(a, b, c, strict=True)]


#: A formula of three [batch, response_len] tensors and a mask; its reference takes the real tokens of one row.
PER_TOKEN: dict[str, tuple[Callable[..., Tensor], Callable[[Numbers, Numbers, Numbers], Numbers]]] = {
    "gae": (
        lambda a, b, c, mask: gae(a, b, mask, GAMMA, LAM),
        lambda a, b, c: later([r + GAMMA * n - v for r, v, n in zip(a, b, [*b[1:], 0.0], strict=False)], GAMMA * LAM),
    ),
    "rewards_to_go": (lambda a, b, c, mask: rewards_to_go(a, mask, GAMMA), lambda a, b, c: later(a, GAMMA)),
    "k1": (lambda a, b, c, mask: kl_tokens(a, b, mask, "k1"), each(lambda a, b, c: a - b)),
    "k2": (lambda a, b, c, mask: kl_tokens(a, b, mask, "k2"), each(lambda a, b, c: (a - b) ** 2 / 2)),
    "k3": (lambda a, b, c, mask: kl_tokens(a, b, mask, "k3"), each(lambda a, b, c: math.exp(b - a) - 1 + a - b)),
    "clipped_surrogate": (
        lambda a, b, c, mask: clipped_surrogate(a, b, c, mask, CLIP).losses,
        each(lambda a, b, c: -capped(math.exp(a - b), c)),
    ),
    "policy_gradient": (lambda a, b, c, mask: policy_gradient(a, c, mask).losses, each(lambda a, b, c: -c * a)),
    "rlmec": (
        lambda a, b, c, mask: rlmec_objective(a, b, c, mask, CLIP).losses,
        each(lambda a, b, c: -capped(math.exp(a - b), c) * a),
    ),
    "value_loss": (
        lambda a, b, c, mask: value_loss(a, b, c, mask, CLIP).losses,
        each(lambda a, b, c: 0.5 * squares(a, b, c)),
    ),
    "value_loss of PAR": (
        lambda a, b, c, mask: value_loss(a, b, c, mask, CLIP, coefficient=1.0).losses,
        each(lambda a, b, c: squares(a, b, c)),
    ),
    "value_loss without a clip": (
        lambda a, b, c, mask: value_loss(a, b, c, mask, None).losses,
        each(lambda a, b, c: 0.5 * (a - c) ** 2),
    ),
}


@pytest.mark.parametrize("name", PER_TOKEN)
@QUICK
@given(lengths=LENGTHS, seed=SEEDS, extra=st.integers(0, 2), junk=st.sampled_from([7.0, -1e4]))
def test_a_token_s_number_is_that_of_its_row_alone(
    name: str, lengths: list[int], seed: int, extra: int, junk: float
) -> None:
    fast, naive = PER_TOKEN[name]
    tensors, mask = draws(lengths, seed), pad(prefix(lengths), (0, extra))
    soiled = [torch.where(mask, pad(tensor, (0, extra)), junk) for tensor in tensors]
    found = fast(*soiled, mask)
    assert (found[~mask] == 0).all()
    for i, n in enumerate(lengths):
        expected = naive(*(tensor[i, :n].tolist() for tensor in tensors))
        assert found[i, :n].tolist() == pytest.approx(expected, abs=1e-3, rel=1e-4)


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_gradient_is_finite_and_0_on_padding_whatever_stands_there(name: str) -> None:
    tensors, mask = draws([1, 0, 3], 0), prefix([1, 0, 3])
    tensors[0] = torch.where(mask, tensors[0], 1e4).requires_grad_()
    PER_TOKEN[name][0](*tensors, mask).sum().backward()
    assert tensors[0].grad is not None
    assert torch.isfinite(tensors[0].grad).all()
    assert (tensors[0].grad[~mask] == 0).all()


@pytest.mark.parametrize("name", ADVANTAGES)
@QUICK
@given(lengths=st.lists(st.integers(0, 3), max_size=5), junk=st.sampled_from([1e30, -1e30, 7.0]), seed=SEEDS)
def test_advantages_of_any_batch_are_finite_and_0_on_padding(
    name: str, lengths: list[int], junk: float, seed: int
) -> None:
    mask, (rewards, values) = prefix(lengths), draws(lengths, seed, 2)
    groups = torch.arange(len(lengths)) // 2
    plain = ADVANTAGES[name].estimate(EstimatorInputs(rewards * mask, values * mask, mask, groups), CONFIG)
    soiled = EstimatorInputs(torch.where(mask, rewards, junk), torch.where(mask, values, junk), mask, groups)
    assert torch.isfinite(plain).all()
    assert (plain[~mask] == 0).all()
    torch.testing.assert_close(ADVANTAGES[name].estimate(soiled, CONFIG), plain)


# --- losses ----------------------------------------------------------------------------------------------------------

OF_TOKENS = sorted(name for name, one in OBJECTIVES.items() if isinstance(one, TokenObjective))


@pytest.mark.parametrize("objective", OF_TOKENS)
@QUICK
@given(lengths=LENGTHS, cap=st.floats(0.1, 5), seed=SEEDS, average=st.sampled_from(sorted(LOSS_AVERAGES)))
def test_gradients_of_weighted_losses_are_those_of_a_naive_loop(
    objective: str, lengths: list[int], cap: float, seed: int, average: str
) -> None:
    mask, (policy, old, engine, advantages) = prefix(lengths), draws(lengths, seed, 4)
    policy.requires_grad_()
    config = optimiser_config(
        "reinforce_plus_plus", iterations=1, rollout_batch=2, minibatch=2, microbatch=2, epochs=1, actor_lr=1.0,
        importance_cap=cap, loss_average=average,
    )  # fmt: skip
    weights = truncated_importance(old, engine, mask, cap)
    loss = OBJECTIVES[objective].loss(ObjectiveInputs(policy, old, old, advantages, mask, weights), config)
    loss.total.backward()
    expected, binding = torch.zeros(mask.shape), torch.zeros(mask.shape, dtype=torch.bool)
    for i, length in enumerate(lengths):
        for t in range(length):
            ratio, advantage = math.exp(policy[i, t].detach() - old[i, t]), float(advantages[i, t])
            weight = min(math.exp(old[i, t] - engine[i, t]), cap)
            binds = capped(ratio, advantage) < ratio * advantage
            slope = {
                "policy_gradient": -advantage,
                "rlmec": -capped(ratio, advantage),
                "clipped_surrogate": 0.0 if binds else -ratio * advantage,
            }[objective]
            expected[i, t] = weight * slope / (length if average == "responses" else 1)
            binding[i, t] = binds and objective != "policy_gradient"
    torch.testing.assert_close(policy.grad, expected, atol=1e-5, rtol=1e-4)
    assert torch.equal(loss.clipped, binding)
    assert not weights.requires_grad
    assert (weights[~mask] == 1).all()


@pytest.mark.parametrize("name", OF_TOKENS)
def test_a_ratio_beyond_float32_times_no_advantage_is_0(name: str) -> None:
    logprobs = torch.tensor([[0.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-200.0, -1.0]])
    seen = ObjectiveInputs(logprobs, old, old, torch.tensor([[0.0, 1.0]]), torch.ones(1, 2, dtype=torch.bool))
    losses = OBJECTIVES[name].token_loss(seen, CONFIG).losses  # type: ignore[union-attr]
    losses.sum().backward()
    assert torch.isfinite(losses).all()
    assert logprobs.grad is not None
    assert torch.isfinite(logprobs.grad).all()


def test_the_preference_loss_is_dpos() -> None:
    losses, margins = preference_loss(torch.tensor([[0.5, -0.5], [-1.0, 2.0]]), 0.1)
    assert margins.tolist() == pytest.approx([0.1, -0.3])
    assert losses.tolist() == pytest.approx([math.log1p(math.exp(-0.1)), math.log1p(math.exp(0.3))])


def test_pairs_put_the_better_response_first_and_ties_the_earlier_one() -> None:
    groups = torch.tensor([4, 2, 4, 2, 9, 9])
    scores = torch.tensor([0.0, 1.0, 3.0, -1.0, 2.0, 2.0])
    assert ordered_pairs(scores, groups).tolist() == [[1, 3], [2, 0], [4, 5]]
    assert ordered_pairs(scores, groups, 2.0).tolist() == [[1, 3], [2, 0]]
    assert ordered_pairs(scores, groups, 2.5).tolist() == [[2, 0]]
    assert ordered_pairs(scores, groups, 4.0).shape == (0, 2)


# --- whitening -------------------------------------------------------------------------------------------------------


@QUICK
@given(lengths=LENGTHS, seed=SEEDS, size=st.sampled_from([1.0, 1e20]))
def test_whitening_is_over_all_real_tokens_of_the_batch(lengths: list[int], seed: int, size: float) -> None:
    """Also where float32 does not hold the squares."""
    (drawn,), mask = draws(lengths, seed, 1), prefix(lengths)
    values = size * (3 + 5 * drawn)
    white = whiten(values, mask)
    assert white[~mask].abs().sum() == 0
    real = values[mask].double()
    if len(real) < 2:
        assert white.abs().sum() == 0
        return
    expected = (real - real.mean()) / real.std(correction=0)
    torch.testing.assert_close(white[mask].double(), expected, atol=1e-3, rtol=0)
    assert float(masked_mean(white, mask)) == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("value", [7.3, -1234.567, 0.1, 1e-6, 1e20])
@pytest.mark.parametrize("shape", [(1, 3), (32, 64), (128, 1024)])
def test_equal_values_whiten_to_zero_whatever_their_mean_rounds_to(value: float, shape: tuple[int, int]) -> None:
    mask = torch.ones(shape).bool()
    mask[:, -1] = False
    assert not whiten(torch.full(shape, value), mask).any()


def test_what_deviates_is_whitened_and_what_is_not_finite_shows() -> None:
    values, mask = 7.3 + 1e-3 * draws([4] * 4, 0, 1)[0], torch.ones(4, 4).bool()
    mean = values.mean()
    plain = (values - mean) * torch.rsqrt(((values - mean) ** 2).mean() + 1e-8)
    assert torch.equal(whiten(values, mask), plain)
    assert whiten(torch.tensor([[math.nan, 1.0]]), torch.ones(1, 2).bool()).isnan().all()
    assert float(masked_mean(torch.randn(2, 4), torch.zeros(2, 4).bool())) == 0.0


# --- groups ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("std", GROUP_STDS)
@QUICK
@given(rows=st.lists(st.tuples(st.integers(0, 3), st.integers(-30, 30)), min_size=1, max_size=12))
def test_group_estimators_are_those_of_a_loop_over_groups(std: str, rows: list[tuple[int, int]]) -> None:
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


@pytest.mark.parametrize("name", GROUP_STDS)
@QUICK
@given(seed=SEEDS, exponent=st.integers(-12, 12), shift=st.floats(-100, 100))
def test_an_affine_map_of_scores_changes_no_advantage_but_undivided_ones(
    name: str, seed: int, exponent: int, shift: float
) -> None:
    scores = torch.randn(20, generator=torch.Generator().manual_seed(seed)).double()
    groups, factor = torch.arange(20) // 5, 10.0**exponent
    moved = group_relative(factor * (scores + shift), groups, name)
    expected = group_relative(scores, groups, name) * (factor if name == "none" else 1.0)
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-5 * (factor if name == "none" else 1.0))


# --- KL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KL_ESTIMATORS)
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_kl_is_0_where_the_policies_agree_and_on_padding(name: str, junk: float) -> None:
    mask = prefix([3, 0, 1])
    logprobs = torch.where(mask, -1.5, junk)
    assert (kl_tokens(logprobs, logprobs, mask, name) == 0).all()


def learned(name: str, values: list[Tensor], mask: Tensor) -> list[Tensor]:
    """A loss or estimate of a table of choices, and its gradients by log-probabilities or values."""
    given = [value.clone().requires_grad_() for value in values]
    config = SimpleNamespace(**{**vars(CONFIG), "dpo_beta": 0.1, "value_target": "advantage_plus_value"})
    if name in OBJECTIVES:
        inputs = ObjectiveInputs(*given[:3], given[3].detach(), mask, given[4].detach())
        found = OBJECTIVES[name].loss(inputs, config)
        result = found.total
    elif name in ADVANTAGES:
        rollouts = EstimatorInputs(given[0], given[1], mask, torch.arange(4) // 2)
        advantages = ADVANTAGES[name].estimate(rollouts, config)
        result = (advantages + value_targets(rollouts, advantages, config) + whiten(advantages, mask)).sum()
    elif name in KL_ESTIMATORS:
        result = kl_tokens(given[0], given[1], mask, name).sum()
    else:
        clip = 0.1 if name == "clipped value_loss" else None
        result = value_loss(*given[:3], mask, clip).losses.sum()
    return [result.detach(), *torch.autograd.grad(result, given, allow_unused=True, materialize_grads=True)]


@pytest.mark.parametrize("name", [*OBJECTIVES, *ADVANTAGES, *KL_ESTIMATORS, "value_loss", "clipped value_loss"])
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_nothing_on_padding_reaches_a_loss_or_a_gradient(name: str, junk: float) -> None:
    mask, generator = prefix([3, 0, 1, 4]), torch.Generator().manual_seed(0)
    values = [torch.randn(4, 4, generator=generator) for _ in range(5)]
    clean = learned(name, [torch.where(mask, value, 0.0) for value in values], mask)
    found = learned(name, [torch.where(mask, value, junk) for value in values], mask)
    torch.testing.assert_close(found, clean)
    assert not any(gradient[~mask].any() for gradient in found[1:])


def test_the_adaptive_coefficient_follows_its_target() -> None:
    coefficient = KLCoefficient(0.2, target=6.0, horizon=1000)
    coefficient.update(6.6, 100)  # 10 percent above
    assert coefficient.value == pytest.approx(0.2 * (1 + 0.1 * 100 / 1000))
    start = coefficient.value
    coefficient.update(600.0, 100)  # clipped at 20 percent
    assert coefficient.value == pytest.approx(start * 1.02)
    coefficient.update(0.0, 100)
    assert coefficient.value == pytest.approx(start * 1.02 * 0.98)
    coefficient.update(0.0, 10**7)
    assert coefficient.value > 0, "a batch of many horizons does not turn it off"
    other = KLCoefficient(0.7, target=6.0)
    other.load_state_dict(coefficient.state_dict())
    assert other.value == coefficient.value
    fixed = KLCoefficient(0.1)
    fixed.update(100.0, 100)
    assert fixed.value == 0.1


def test_equal_scores_of_a_group_give_no_advantage() -> None:
    groups = torch.arange(10) // 5
    for constant in (0.0, 0.1, 1e4 / 3):
        assert group_relative(torch.full((10,), constant), groups).abs().max() == 0
        assert leave_one_out(torch.full((10,), constant), groups).abs().max() < 1e-9


def test_k1_and_k3_are_unbiased_for_the_exact_kl() -> None:
    p, q = torch.tensor([0.6, 0.3, 0.1]), torch.tensor([0.2, 0.5, 0.3])
    exact = float((p * (p / q).log()).sum())
    for estimator in ("k1", "k3"):
        found = kl_tokens(p.log()[None], q.log()[None], torch.ones(1, 3).bool(), estimator)[0]
        assert float((p * found).sum()) == pytest.approx(exact, abs=1e-6)
