"""Settings of low-rank adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from rlhf_core.errors import RecipeError
from rlhf_core.typed import Checked, above, between


@dataclass(frozen=True)
class LoraSettings(Checked):
    """Settings of LoRA adapters.

    Args:
        rank: of the update's two factors.
        alpha: the update is scaled by alpha / rank.
        dropout: on the adapter's input, in training mode only.
        targets: names of the adapted linear layers; 'all-linear' is every one but the output projection.

    Source: Hu et al. 2021. ALARM: rank 16, alpha 32, dropout .05.
    """

    rank: Annotated[int, between(1, 65536)] = 16
    alpha: Annotated[float, above(0)] = 32.0
    dropout: Annotated[float, between(0, 1, open_high=True)] = 0.05
    targets: str | tuple[str, ...] = "all-linear"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.targets:
            raise RecipeError("targets is empty; name layers, or 'all-linear'")
