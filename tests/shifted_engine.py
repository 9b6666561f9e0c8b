"""A user's own engine, whose log-probabilities are not the policy's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rlhf_core.models.generation import Generated
from rlhf_core.models.sampling import Loop

ENGINE, GAP = f"{__name__}:Shifted", 0.25


class Shifted(Loop):
    """The loop with other log-probabilities, as an engine with kernels of its own has."""

    rescored = True

    def sample(self, *given: Any) -> Generated:
        import torch

        made = super().sample(*given)
        return replace(made, logprobs=torch.where(made.mask, made.logprobs - GAP, 0.0))
