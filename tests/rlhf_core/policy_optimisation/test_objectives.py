"""Clipped objectives by hand and against naive loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.policy_optimisation.objectives import clipped_surrogate, clipped_value_loss


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values])


def test_clipped_surrogate_by_hand() -> None:
    ratios, advantages = [1.5, 1.5, 0.5, 0.5, 1.1, 9.0], row(1.0, -1.0, 1.0, -1.0, 2.0, 5.0)
    logprobs = torch.tensor([[math.log(r) for r in ratios]], requires_grad=True)
    mask = torch.tensor([[True] * 5 + [False]])
    loss, clipped = clipped_surrogate(logprobs, torch.zeros(1, 6), advantages, mask, 0.2)
    assert float(loss.detach()) == pytest.approx(-(1.2 - 1.5 + 0.5 - 0.8 + 2.2), abs=1e-5)
    assert int(clipped) == 2
    loss.backward()
    # no gradient where the clip binds or on padding; -ratio * A elsewhere
    assert logprobs.grad[0].tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, -2.2, 0.0], abs=1e-5)  # type: ignore[index]


def test_clipped_value_loss_by_hand() -> None:
    values = torch.tensor([[1.0, 1.0, 0.1, 3.0]], requires_grad=True)
    old, returns, mask = torch.zeros(1, 4), row(2.0, 0.0, 1.0, 9.0), torch.tensor([[True, True, True, False]])
    loss, clipped = clipped_value_loss(values, old, returns, mask, 0.25)
    # token 0: max((1-2)^2, (.25-2)^2); token 1: max(1, .0625); token 2: inside the clip
    assert float(loss.detach()) == pytest.approx(0.5 * (1.75**2 + 1.0 + 0.9**2), abs=1e-5)
    assert int(clipped) == 1
    loss.backward()
    assert values.grad[0].tolist() == pytest.approx([0.0, 1.0, -0.9, 0.0], abs=1e-5)  # type: ignore[index]
    plain, none = clipped_value_loss(values.detach(), old, returns, mask, None)
    assert float(plain) == pytest.approx(0.5 * (1.0 + 1.0 + 0.81))
    assert int(none) == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1000), st.lists(st.integers(0, 4), min_size=1, max_size=3), st.floats(0.05, 0.5))
def test_losses_are_sums_over_real_tokens(seed: int, lengths: list[int], clip: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    new, old, third = (torch.randn(len(lengths), 4, generator=generator) for _ in range(3))
    mask = torch.arange(4)[None] < torch.tensor(lengths)[:, None]
    loss, clipped = clipped_surrogate(new, old, third, mask, clip)
    value_loss, _ = clipped_value_loss(new, old, third, mask, clip)
    naive, naive_value, binding = 0.0, 0.0, 0
    for i, n in enumerate(lengths):
        for t in range(n):
            v, o, a = float(new[i, t]), float(old[i, t]), float(third[i, t])
            ratio = math.exp(v - o)
            bounded = min(max(ratio, 1 - clip), 1 + clip)
            naive -= min(ratio * a, bounded * a)
            binding += bounded * a < ratio * a
            bounded_value = o + min(max(v - o, -clip), clip)
            naive_value += 0.5 * max((v - a) ** 2, (bounded_value - a) ** 2)
    assert float(loss) == pytest.approx(naive, abs=1e-3, rel=1e-4)
    assert float(value_loss) == pytest.approx(naive_value, abs=1e-3, rel=1e-4)
    assert int(clipped) == binding


def test_padding_never_makes_a_loss_or_gradient_infinite() -> None:
    new = torch.tensor([[0.0, 1e4]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    loss, _ = clipped_surrogate(new, torch.zeros(1, 2), torch.ones(1, 2), mask, 0.2)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(new.grad).all()  # type: ignore[arg-type]
