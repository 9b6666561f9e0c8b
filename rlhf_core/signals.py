"""Typed reward signals: one number per response, per segment or per token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlhf_core.lazy import torch
from rlhf_core.segmentation.segments import Segmentation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Sequence:
    """One value per response: `values` [batch] float32."""

    values: Tensor


@dataclass(frozen=True)
class Segments:
    """One value per segment: `values` [batch, max_segments] float32, 0 beyond each row's count."""

    values: Tensor
    segmentation: Segmentation

    def masked_mean(self) -> Tensor:
        """Returns [batch] float32, plain mean over segments, 0 for a response without any. Source: Segment, Eq. 4."""
        mask = self.segmentation.mask
        total = torch.where(mask, self.values, torch.zeros_like(self.values)).sum(dim=1)
        return total / self.segmentation.count.clamp(min=1)


@dataclass(frozen=True)
class Tokens:
    """One value per response token: `values` [batch, response_len] float32, 0 on padding."""

    values: Tensor


Signal = Sequence | Segments | Tokens
SignalType = type[Sequence] | type[Segments] | type[Tokens]
