"""Edit alignment: by hand, and against the full table of distances on any tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.errors import RecipeError
from rlhf_core.minimum_editing import edit_distance, edit_weights, edited_tokens, mistaken_tokens

TOKENS = st.lists(st.integers(0, 4), max_size=12)


def edited_tokens_naive(source: Sequence[int], target: Sequence[int]) -> list[bool]:
    """Computes `edited_tokens` by the full table of distances, in Python: the reference.

    Where alignments tie it may choose another one, of the same cost.
    """
    rows, columns = len(source) + 1, len(target) + 1
    cost = [[i + j if 0 in (i, j) else 0 for j in range(columns)] for i in range(rows)]
    for i in range(1, rows):
        for j in range(1, columns):
            replaced = cost[i - 1][j - 1] + (source[i - 1] != target[j - 1])
            cost[i][j] = min(replaced, cost[i - 1][j] + 1, cost[i][j - 1] + 1)
    edited = [False] * len(target)
    i, j = len(source), len(target)
    while j:
        if i and cost[i][j] == cost[i - 1][j - 1] + (source[i - 1] != target[j - 1]):
            i, j = i - 1, j - 1
            edited[j] = source[i] != target[j]
        elif i and cost[i][j] == cost[i - 1][j] + 1:
            i -= 1
        else:
            j -= 1
            edited[j] = True
    return edited


def kept(tokens: list[int], changed: list[bool]) -> list[int]:
    return [token for token, is_changed in zip(tokens, changed, strict=True) if not is_changed]


def test_a_deletion_leaves_nothing_to_weigh() -> None:
    assert edited_tokens([5, 6, 7], [5, 7]) == [False, False]
    assert mistaken_tokens([5, 6, 7], [5, 7]) == [False, True, False]


def test_weights_are_gamma_on_edits_and_phi_gamma_elsewhere() -> None:
    assert edit_weights([5, 6, 7], [5, 9, 8, 7]) == [0.5, 1.0, 1.0, 0.5]
    assert edit_weights([1, 2], [1, 3], gamma=2.0, phi=0.25) == [0.5, 2.0]


@pytest.mark.parametrize(("source", "target", "edited"), [([], [], []), ([], [1], [True]), ([1], [], [])])
def test_empty_sides_are_defined(source: list[int], target: list[int], edited: list[bool]) -> None:
    assert edited_tokens(source, target) == edited == edited_tokens_naive(source, target)


def test_a_weight_below_zero_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"phi -1\.0; neither may be below 0"):
        edit_weights([1], [2], phi=-1.0)


@given(TOKENS, TOKENS)
def test_what_is_kept_on_both_sides_is_the_same_and_the_cost_is_least(source: list[int], target: list[int]) -> None:
    edited, mistaken = edited_tokens(source, target), mistaken_tokens(source, target)
    assert kept(target, edited) == kept(source, mistaken)
    # Cost = edited tokens + deletions, of which there are at least as many as the source is longer.
    assert sum(edited) + max(0, len(source) - len(target)) <= edit_distance(source, target)
    assert edit_distance(source, target) <= sum(edited) + sum(mistaken)


@given(TOKENS, TOKENS)
def test_the_naive_alignment_has_the_same_cost(source: list[int], target: list[int]) -> None:
    edited = edited_tokens_naive(source, target)
    unread = iter(source)
    assert all(token in unread for token in kept(target, edited))
    assert sum(edited) + max(0, len(source) - len(target)) <= edit_distance(source, target)


@given(TOKENS, TOKENS)
def test_distance_is_that_of_the_full_table(source: list[int], target: list[int]) -> None:
    table = list(range(len(target) + 1))
    for i, left in enumerate(source, start=1):
        before, table = table, [i]
        for j, right in enumerate(target):
            table.append(min(before[j] + (left != right), before[j + 1] + 1, table[j] + 1))
    assert edit_distance(source, target) == table[-1]
