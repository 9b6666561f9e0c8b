"""Shares of the time of a benchmark's own side."""

from __future__ import annotations

import time

import pytest
import torch

from benchmarks.limits import shares, timed_models


def test_shares_are_of_all_seconds() -> None:
    operations = {"aten::mm": 3.0, "aten::_scaled_dot_product_flash_attention": 1.0, "aten::mul": 2.0, "aten::cat": 1.0}
    found = shares(operations, 10.0)
    assert found == pytest.approx({"products": 0.4, "others": 0.3, "largest": 0.2, "outside": 0.3})


class Model(torch.nn.Module):
    """Takes a tenth of a second forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        time.sleep(0.1)
        return self.weight * input_ids


def test_time_in_models_counts_padding_and_rows_that_have_ended() -> None:
    forward, backward = Model.forward, torch.Tensor.backward
    model, padded = Model(), torch.tensor([[5, 5], [5, 0]])
    with timed_models(Model, pad_id=0) as time_of:
        model(input_ids=padded)
        assert time_of.real == pytest.approx(0.75 * time_of.all)
        ended = torch.tensor([[1, 1, 1], [1, 1, 0]])
        model(input_ids=padded[:, :1], attention_mask=ended).sum().backward()
        assert time_of.last == 0.5
        assert time_of.all > 0.2
    assert Model.forward is forward
    assert torch.Tensor.backward is backward
