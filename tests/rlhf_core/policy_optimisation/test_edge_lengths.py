"""Scalar models read responses of no and of one token, whatever stands beside them."""

from __future__ import annotations

import pytest
import torch
from tiny_models import tiny_critic
from torch import Tensor
from torch.nn.functional import pad

from rlhf_core.models.policy import pad_rows

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
