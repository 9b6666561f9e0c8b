"""Responses of no and of one token, and rows that are all padding, change nothing for the others."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny_critic
from torch import Tensor
from torch.nn.functional import pad

from rlhf_core.models.policy import pad_rows
from rlhf_core.policy_optimisation.advantages import gae, rewards_to_go, whiten
from rlhf_core.policy_optimisation.kl import kl_tokens
from rlhf_core.policy_optimisation.objectives import clipped_surrogate, policy_gradient, rlmec_objective, value_loss

#: (three [batch, response_len] tensors, mask) -> [batch, response_len]
PER_TOKEN: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "gae": lambda a, b, c, mask: gae(a, b, mask, 0.9, 0.8),
    "rewards_to_go": lambda a, b, c, mask: rewards_to_go(a, mask, 0.9),
    "whiten": lambda a, b, c, mask: whiten(a, mask),
    "k1": lambda a, b, c, mask: kl_tokens(a, b, mask, "k1"),
    "k2": lambda a, b, c, mask: kl_tokens(a, b, mask, "k2"),
    "k3": lambda a, b, c, mask: kl_tokens(a, b, mask, "k3"),
    "clipped_surrogate": lambda a, b, c, mask: clipped_surrogate(a, b, c, mask, 0.2).losses,
    "policy_gradient": lambda a, b, c, mask: policy_gradient(a, c, mask).losses,
    "rlmec": lambda a, b, c, mask: rlmec_objective(a, b, c, mask, 0.3).losses,
    "value_loss": lambda a, b, c, mask: value_loss(a, b, c, mask, 0.2).losses,
}
lengths_of_a_batch = st.lists(st.integers(0, 3), min_size=1, max_size=5)


def drawn(lengths: list[int], width: int, seed: int) -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mask = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    return [torch.randn((len(lengths), width), generator=generator) for _ in range(3)], mask


@pytest.mark.parametrize("name", PER_TOKEN)
@given(lengths=lengths_of_a_batch, seed=st.integers(0, 100), extra=st.integers(0, 2), junk=st.floats(-1e4, 1e4))
def test_padding_is_paid_nothing_and_what_stands_on_it_does_not_matter(
    name: str, lengths: list[int], seed: int, extra: int, junk: float
) -> None:
    function = PER_TOKEN[name]
    tensors, mask = drawn(lengths, 3, seed)
    plain = function(*tensors, mask)
    assert torch.isfinite(plain).all()
    assert (plain[~mask] == 0).all()
    wide = torch.nn.functional.pad(mask, (0, extra))
    soiled = [torch.where(wide, pad(tensor, (0, extra)), junk) for tensor in tensors]
    torch.testing.assert_close(function(*soiled, wide), pad(plain, (0, extra)))


@pytest.mark.parametrize("name", PER_TOKEN)
@given(lengths=lengths_of_a_batch, seed=st.integers(0, 100), empty=st.integers(1, 3))
def test_rows_that_are_all_padding_change_nothing_for_the_others(
    name: str, lengths: list[int], seed: int, empty: int
) -> None:
    function = PER_TOKEN[name]
    tensors, mask = drawn([*lengths, *[0] * empty], 3, seed)
    n = len(lengths)
    found = function(*tensors, mask)
    torch.testing.assert_close(found[:n], function(*(tensor[:n] for tensor in tensors), mask[:n]))
    assert (found[n:] == 0).all()


@pytest.mark.parametrize("name", PER_TOKEN)
def test_a_response_of_one_token_has_a_finite_gradient(name: str) -> None:
    tensors, mask = drawn([1, 0], 2, 0)
    tensors[0].requires_grad_(True)
    loss = PER_TOKEN[name](*tensors, mask).sum()
    loss.backward()
    assert tensors[0].grad is not None
    assert torch.isfinite(tensors[0].grad).all()
    assert (tensors[0].grad[~mask] == 0).all()


PROMPTS = [[5, 6, 7], [8], [9, 10], [11, 12]]


@pytest.mark.parametrize("shift", [0, 1])
def test_a_scalar_model_reads_a_response_whatever_stands_beside_it(kind: str, shift: int) -> None:
    """Of any length, none included, of both kinds of backbone."""
    model = tiny_critic(kind, 1)
    rows = [[20, 21, 22, 2], [], [23], [24, 2]]

    def values(chosen: list[int], extra: int = 0) -> Tensor:
        prompts, prompt_mask = pad_rows([PROMPTS[i] for i in chosen], 0, "left")
        ids, mask = pad_rows([rows[i] for i in chosen], 0, "right")
        sides = pad(prompts, (extra, 0)), pad(prompt_mask, (extra, 0)), pad(ids, (0, extra)), pad(mask, (0, extra))
        with torch.no_grad():
            made: Tensor = model(*sides, head="value", shift=shift)
        return made

    together = values([0, 1, 2, 3])
    assert together.dtype == torch.float32
    assert (together[1] == 0).all()
    torch.testing.assert_close(values([0, 1, 2, 3], extra=2)[:, :4], together, atol=1e-5, rtol=1e-4)
    for i in (0, 2, 3):
        alone = values([i])[0]
        torch.testing.assert_close(together[i, : len(alone)], alone, atol=1e-5, rtol=1e-4)
        assert (together[i, len(alone) :] == 0).all()
        assert (alone != 0).all()


def test_a_critic_of_any_kind_learns_from_its_backbone_and_its_head(kind: str) -> None:
    model = tiny_critic(kind, 1)
    prompts, prompt_mask = pad_rows(PROMPTS, 0, "left")
    ids, mask = pad_rows([[20, 21], [], [23], [24, 2]], 0, "right")
    model(prompts, prompt_mask, ids, mask, head="value", shift=1).sum().backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert any(name.startswith("heads.") for name in gradients)
    assert any("decoder" in name or "layers" in name for name in gradients)
    if kind == "encoder_decoder":
        assert any("encoder.block" in name and float(g.abs().sum()) > 0 for name, g in gradients.items())
    assert all(torch.isfinite(g).all() for g in gradients.values())
