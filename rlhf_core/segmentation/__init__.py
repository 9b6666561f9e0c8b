"""Segmentation: bandit, token, n-gram, sentence markers, entropy cutoff."""

from rlhf_core.segmentation.segmenters import (
    SEGMENTERS,
    Bandit,
    Entropy,
    NGram,
    Segmenter,
    SentenceMarkers,
    Token,
    build_segmenter,
)
from rlhf_core.segmentation.segments import Segmentation, from_spans

__all__ = [
    "SEGMENTERS",
    "Bandit",
    "Entropy",
    "NGram",
    "Segmentation",
    "Segmenter",
    "SentenceMarkers",
    "Token",
    "build_segmenter",
    "from_spans",
]
