"""Puts this folder's `tiny_models` on the path of the tests below it, and keeps them to one thread."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


@pytest.fixture(params=["decoder", "encoder_decoder"])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of policy: a name in `tiny_models.POLICIES`."""
    return str(request.param)
