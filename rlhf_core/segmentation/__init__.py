"""Segmentation: bandit, token, n-gram, sentence markers, entropy cutoff, SaT sentences."""

from rlhf_core.segmentation.sat import SaT
from rlhf_core.segmentation.segmenters import (
    SEGMENTERS,
    Bandit,
    Entropy,
    NGram,
    Segmenter,
    SentenceMarkers,
    Token,
    build_segmenter,
    check_stated_segmenter,
)
from rlhf_core.segmentation.segments import Segmentation, from_spans

__all__ = [
    "SEGMENTERS",
    "Bandit",
    "Entropy",
    "NGram",
    "SaT",
    "Segmentation",
    "Segmenter",
    "SentenceMarkers",
    "Token",
    "build_segmenter",
    "check_stated_segmenter",
    "from_spans",
]
