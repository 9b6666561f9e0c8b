"""Best-of-N: of the first N responses in one pool, the one with the highest reward.

Subsets are nested, so that a curve over N comes from one pool, and the first of equal rewards wins. Source: Sentence,
appendix B.2.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlhf_core.errors import NumericsError, RecipeError


def check_sizes(sizes: Sequence[int], pool: int) -> None:
    """Refuses subsets that are empty, repeated or larger than the pool.

    Raises:
        RecipeError: names the sizes and the pool.
    """
    if not sizes or len(set(sizes)) != len(sizes) or min(sizes) < 1 or max(sizes) > pool:
        raise RecipeError(f"sizes are {list(sizes)}; they must be distinct, at least 1 and at most the pool of {pool}")


def best_of_first(rewards: Tensor, sizes: Sequence[int]) -> dict[int, list[int]]:
    """Returns {N: index of the best of each prompt's first N responses}, the first one among equals.

    Args:
        rewards: [prompts, pool] float32.
        sizes: every N, at most the pool.

    Raises:
        RecipeError: an N that the pool does not have.
        NumericsError: a reward that is not finite.
    """
    check_sizes(sizes, rewards.shape[1])
    if not torch.isfinite(rewards).all():
        raise NumericsError("a reward of the pool is not finite, so that no response is the best")
    chosen: dict[int, list[int]] = {}
    for size in sizes:
        first = rewards[:, :size]
        # torch.argmax leaves open which of several equal entries it takes.
        places = torch.arange(size).expand(first.shape)
        equal = first == first.max(dim=1, keepdim=True).values
        chosen[size] = torch.where(equal, places, size).min(dim=1).values.tolist()
    return chosen
