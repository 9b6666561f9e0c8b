"""Aspect rewards: what a response is worth in one respect, with a declared density and direction."""

from rlhf_core.aspects.aspect import Aspect, Density, Scored, checked_scores, prefetch, rate
from rlhf_core.aspects.choices import ASPECTS, build_aspect

__all__ = ["ASPECTS", "Aspect", "Density", "Scored", "build_aspect", "checked_scores", "prefetch", "rate"]
