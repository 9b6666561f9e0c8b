"""Token-level Levenshtein alignment: which tokens an edit inserts or replaces, and their imitation weights.

Of several alignments of the same least cost, rapidfuzz's is taken; which one is the same for the same tokens.

The rewrites themselves, and what makes one acceptable: `rlhf_core.reasoning.rewriting`. Source: RLMEC, section 4.2,
Eq. 8.
"""

from __future__ import annotations

from collections.abc import Sequence

from rapidfuzz.distance import Levenshtein

from rlhf_core.errors import RecipeError


def edit_distance(source: Sequence[int], target: Sequence[int]) -> int:
    """Returns the fewest insertions, deletions and replacements of tokens that turn `source` into `target`."""
    return int(Levenshtein.distance(source, target))


def edited_tokens(source: Sequence[int], target: Sequence[int]) -> list[bool]:
    """Returns [len(target)] whether the alignment inserts the token or puts it in another's place; the set T of Eq.
    8."""
    edited = [False] * len(target)
    for edit in Levenshtein.editops(source, target):
        if edit.tag != "delete":
            edited[edit.dest_pos] = True
    return edited


def mistaken_tokens(source: Sequence[int], target: Sequence[int]) -> list[bool]:
    """Returns [len(source)] whether the alignment deletes the token or puts another in its place."""
    mistaken = [False] * len(source)
    for edit in Levenshtein.editops(source, target):
        if edit.tag != "insert":
            mistaken[edit.src_pos] = True
    return mistaken


def edit_weights(source: Sequence[int], target: Sequence[int], *, gamma: float = 1.0, phi: float = 0.5) -> list[float]:
    """Returns [len(target)] imitation weight of each token of a rewrite.

    Args:
        source: tokens of the prediction.
        target: tokens of its rewrite.
        gamma: weight of inserted and replaced tokens; deletions leave no token to weigh.
        phi: the other tokens weigh phi * gamma.

    Raises:
        RecipeError: a weight below 0.

    Source: RLMEC, Eq. 8.
    """
    if gamma < 0 or phi < 0:
        raise RecipeError(f"gamma is {gamma} and phi {phi}; neither may be below 0")
    return [gamma if edited else phi * gamma for edited in edited_tokens(source, target)]
