"""Clipped objectives by hand and against naive loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.policy_optimisation.config import optimiser_config
from rlhf_core.policy_optimisation.objectives import (
    LOSS_AVERAGES,
    OBJECTIVES,
    ObjectiveInputs,
    clipped_surrogate,
    nonzero_rewards,
    ordered_pairs,
    policy_gradient,
    preference_loss,
    rlmec_objective,
    truncated_importance,
    value_loss,
)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def test_clipped_surrogate_by_hand() -> None:
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.1, 9.0], row(1.0, -1.0, 1.0, -1.0, 2.0, 5.0)
    logprobs = torch.tensor([[math.log(r) for r in ratios]], requires_grad=True)
    mask = torch.tensor([[True] * 5 + [False]])
    terms = clipped_surrogate(logprobs, torch.zeros(1, 6), advantages, mask, 0.2)
    loss, clipped = terms.losses.sum(), terms.clipped.sum()
    assert float(loss.detach()) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2), abs=1e-5)
    assert int(clipped) == 2
    loss.backward()
    # no gradient where the clip binds or on padding; -ratio * A elsewhere
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, -2.2, 0.0], abs=1e-5)  # type: ignore[index]


def test_policy_gradient_by_hand() -> None:
    logprobs = torch.tensor([[-1.0, -2.0, -5.0]], requires_grad=True)
    terms = policy_gradient(logprobs, row(2.0, -3.0, 9.0), torch.tensor([[True, True, False]]))
    assert terms.losses.tolist() == [[2.0, -6.0, 0.0]]
    assert not terms.clipped.any()
    terms.losses.sum().backward()
    assert logprobs.grad[0].tolist() == [-2.0, 3.0, 0.0]  # type: ignore[index]


def test_truncated_importance_by_hand() -> None:
    """Two responses whose engine found other probabilities than the policy; the second has one token of padding."""
    policy = torch.tensor([[0.5, 0.2, 0.9], [0.4, 0.3, 0.1]]).log().requires_grad_()
    engine = torch.tensor([[0.4, 0.4, 0.1], [0.4, 0.1, 0.9]]).log()
    mask = torch.tensor([[True] * 3, [True, True, False]])
    found = truncated_importance(policy, engine, mask, 2.0)
    assert found.tolist() == [pytest.approx([1.25, 0.5, 2.0]), pytest.approx([1.0, 2.0, 1.0])]
    assert not found.requires_grad
    assert truncated_importance(policy, engine, mask, 0.8).max() == pytest.approx(1.0), "padding is 1 under any cap"


@given(
    lengths=st.lists(st.integers(0, 4), min_size=1, max_size=4), cap=st.floats(0.1, 5), seed=st.integers(0, 9),
    average=st.sampled_from(sorted(LOSS_AVERAGES)), objective=st.sampled_from(["clipped_surrogate", "policy_gradient"]),
)  # fmt: skip
@settings(deadline=None)
def test_weighted_losses_are_those_of_a_naive_loop(
    lengths: list[int], cap: float, seed: int, average: str, objective: str
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = len(lengths), max(1, *lengths)
    policy, old, engine, advantages = (torch.randn(shape, generator=generator) for _ in range(4))
    mask = torch.arange(shape[1]) < torch.tensor(lengths)[:, None]
    policy.requires_grad_()
    config = optimiser_config(
        "reinforce_plus_plus", iterations=1, rollout_batch=2, minibatch=2, microbatch=2, epochs=1, actor_lr=1.0,
        objective=objective, importance_cap=cap, loss_average=average,
    )  # fmt: skip
    weights = truncated_importance(old, engine, mask, cap)
    seen = ObjectiveInputs(policy, old, old, advantages, mask, weights)
    OBJECTIVES[objective].loss(seen, config).total.backward()
    expected = torch.zeros(shape)
    for i, length in enumerate(lengths):
        for t in range(length):
            weight = min(math.exp(old[i, t] - engine[i, t]), cap)
            ratio, advantage = math.exp(policy[i, t].detach() - old[i, t]), float(advantages[i, t])
            binds = max(min(ratio, 1.2), 0.8) * advantage < ratio * advantage
            slope = -advantage if objective == "policy_gradient" else 0.0 if binds else -ratio * advantage
            expected[i, t] = weight * slope / (length if average == "responses" else 1)
    torch.testing.assert_close(policy.grad, expected, atol=1e-5, rtol=1e-4)


def test_clipped_value_loss_by_hand() -> None:
    values = torch.tensor([[1.0, 1.0, 0.1, 3.0]], requires_grad=True)
    old, returns, mask = torch.zeros(1, 4), row(2.0, 0.0, 1.0, 9.0), torch.tensor([[True, True, True, False]])
    terms = value_loss(values, old, returns, mask, 0.25)
    loss, clipped = terms.losses.sum(), terms.clipped.sum()
    # token 0: max((1-2)^2, (.25-2)^2); token 1: max(1, .0625); token 2: inside the clip
    assert float(loss.detach()) == pytest.approx(0.5 * (1.75**2 + 1.0 + 0.9**2), abs=1e-5)
    assert int(clipped) == 1
    loss.backward()
    assert values.grad[0].tolist() == pytest.approx([0.0, 1.0, -0.9, 0.0], abs=1e-5)  # type: ignore[index]
    plain = value_loss(values.detach(), old, returns, mask, None)
    assert float(plain.losses.sum()) == pytest.approx(0.5 * (1.0 + 1.0 + 0.81))
    assert not plain.clipped.any()
    par = value_loss(values.detach(), old, returns, mask, 0.25, coefficient=1.0)
    assert float(par.losses.sum()) == pytest.approx(1.75**2 + 1.0 + 0.9**2, abs=1e-5)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.floats(0.05, 0.5))
def test_losses_are_sums_over_real_tokens(seed: int, lengths: list[int], clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old, third = (torch.randn(len(lengths), 4, generator=generator) for _ in range(3))
    mask = torch.arange(4)[None] < torch.tensor(lengths)[:, None]
    terms = clipped_surrogate(new, old, third, mask, clip)
    loss, clipped = terms.losses.sum(), terms.clipped.sum()
    value = value_loss(new, old, third, mask, clip).losses.sum()
    gradient = policy_gradient(new, third, mask).losses.sum()
    rlmec = rlmec_objective(new, old, third, mask, clip).losses.sum()
    naive, naive_value, binding, naive_gradient, naive_rlmec = 0.0, 0.0, 0, 0.0, 0.0
    for i, n in enumerate(lengths):
        for t in range(n):
            v, o, a = float(new[i, t]), float(old[i, t]), float(third[i, t])
            ratio = math.exp(v - o)
            bounded = min(max(ratio, 1 - clip), 1 + clip)
            naive -= min(ratio * a, bounded * a)
            binding += bounded * a < ratio * a
            naive_gradient -= a * v
            naive_rlmec -= min(ratio * a, bounded * a) * v
            bounded_value = o + min(max(v - o, -clip), clip)
            naive_value += 0.5 * max((v - a) ** 2, (bounded_value - a) ** 2)
    assert float(loss) == pytest.approx(naive, abs=1e-3, rel=1e-4)
    assert float(value) == pytest.approx(naive_value, abs=1e-3, rel=1e-4)
    assert float(gradient) == pytest.approx(naive_gradient, abs=1e-3, rel=1e-4)
    assert float(rlmec) == pytest.approx(naive_rlmec, abs=1e-3, rel=1e-4)
    assert int(clipped) == binding


def test_padding_never_makes_a_loss_or_gradient_infinite() -> None:
    new = torch.tensor([[0.0, 1e4]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    zero, one = torch.zeros(1, 2), torch.ones(1, 2)
    loss = (
        clipped_surrogate(new, zero, one, mask, 0.2).losses.sum()
        + rlmec_objective(new, zero, one, mask, 0.2).losses.sum()
    )
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(new.grad).all()  # type: ignore[arg-type]


def test_the_rlmec_coefficient_by_hand() -> None:
    ratios = [2.0, 2.0, 0.5, 0.5, 1.1, 1.0, 5.0]
    rewards = row(0.5, -0.1, 0.5, -0.1, 0.2, 0.0, 0.5)
    logprobs = torch.tensor([[math.log(r) - 3 for r in ratios]], requires_grad=True)
    mask = torch.tensor([[True] * 6 + [False]])
    terms = rlmec_objective(logprobs, torch.full((1, 7), -3.0), rewards, mask, 0.3)
    assert int(nonzero_rewards(rewards, mask)) == 5
    (terms.losses.sum() / nonzero_rewards(rewards, mask)).backward()
    # min(r R, clip(r) R): a positive reward is capped above, a negative one floored below
    coefficients = [1.3 * 0.5, 2.0 * -0.1, 0.5 * 0.5, 0.7 * -0.1, 1.1 * 0.2, 0.0, 0.0]
    assert logprobs.grad[0].tolist() == pytest.approx([-c / 5 for c in coefficients], abs=1e-6)  # type: ignore[index]
    assert terms.clipped[0].tolist() == [True, False, False, True, False, False, False]


def test_nothing_to_learn_divides_by_one() -> None:
    assert int(nonzero_rewards(torch.zeros(2, 3), torch.ones(2, 3).bool())) == 1
    assert int(nonzero_rewards(torch.ones(2, 3), torch.zeros(2, 3).bool())) == 1


def test_the_preference_loss_is_dpos() -> None:
    logratios = torch.tensor([[0.5, -0.5], [-1.0, 2.0]])
    losses, margins = preference_loss(logratios, 0.1)
    assert margins.tolist() == pytest.approx([0.1, -0.3])
    assert losses.tolist() == pytest.approx([math.log1p(math.exp(-0.1)), math.log1p(math.exp(0.3))])


def test_pairs_put_the_better_response_first_and_ties_the_earlier_one() -> None:
    groups = torch.tensor([4, 2, 4, 2, 9, 9])
    scores = torch.tensor([0.0, 1.0, 3.0, -1.0, 2.0, 2.0])
    assert ordered_pairs(scores, groups).tolist() == [[1, 3], [2, 0], [4, 5]]
    assert ordered_pairs(scores, groups, 2.0).tolist() == [[1, 3], [2, 0]]
    assert ordered_pairs(scores, groups, 2.5).tolist() == [[2, 0]]
    assert ordered_pairs(scores, groups, 4.0).shape == (0, 2)
    # any strictly monotone shaping leaves the pairs exactly as they are
    for shaped in (scores.sigmoid(), scores.exp(), 3 * scores - 100, scores**3):
        assert torch.equal(ordered_pairs(shaped, groups), ordered_pairs(scores, groups))
