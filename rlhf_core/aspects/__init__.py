"""Aspect rewards: what a response is worth in one respect, with a declared density and direction."""

from rlhf_core.aspects.aspect import Aspect, Density, Scored, checked_scores, prefetch, rate

__all__ = ["Aspect", "Density", "Scored", "checked_scores", "prefetch", "rate"]
