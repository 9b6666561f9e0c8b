"""A tokenised sequence with the places at which its segments end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf_core.data.encoding import EncodedSequence


@dataclass(frozen=True)
class SegmentedSequence:
    """A sequence and the response token indices at which its segments end."""

    sequence: EncodedSequence
    ends: list[int]
