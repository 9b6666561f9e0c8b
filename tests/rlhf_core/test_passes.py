"""Which rows a forward pass takes: every row once, as many passes on every rank, no more tokens than the budget."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core import distributed
from rlhf_core.data.encoding import EncodedSequence
from rlhf_core.passes import RowTokens

#: Prompts' lengths, and the lengths of each one's responses.
GROUPS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 9), min_size=1, max_size=5)), max_size=7)


def row_tokens(groups: list[tuple[int, list[int]]]) -> RowTokens:
    rows = [(name, prompt, own) for name, (prompt, responses) in enumerate(groups) for own in responses]
    return RowTokens([own for *_, own in rows], [prompt for _, prompt, _ in rows], [name for name, *_ in rows])


def cost(tokens: RowTokens, rows: list[int]) -> int:
    """Tokens of padded rectangles: of prompts and of responses, or of both together where nothing is packed."""
    prompt, own = max(tokens.prompts[i] for i in rows), max(tokens.own[i] for i in rows)
    prompts = len({tokens.groups[i] for i in rows}) if tokens.packed else len(rows)
    return prompts * prompt + len(rows) * own


@settings(max_examples=100, deadline=None)
@given(GROUPS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 2), st.booleans())
def test_every_row_counts_once_and_no_pass_exceeds_the_budget(
    groups: list[tuple[int, list[int]]], size: int, world: int, together: int, packed: bool
) -> None:
    groups = [(prompt, responses * together) for prompt, responses in groups]
    tokens = row_tokens(groups)
    tokens.packed = packed
    rows = range(len(tokens.own))
    units = tokens.sort([list(rows[first : first + together]) for first in range(0, len(rows), together)])
    assert sorted(i for unit in units for i in unit) == list(rows)
    if not units:
        return
    passes = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributed, "world_size", lambda: world)
        for rank in range(world):
            patch.setattr(distributed, "rank", lambda rank=rank: rank)
            passes.append(tokens.shares(units, size))
    assert len({len(each) for each in passes}) == 1
    counted = [part for each in passes for part, counts in each if counts]
    assert sorted(i for part in counted for i in part) == list(rows)
    assert all(part for each in passes for part, _ in each)
    for part in counted:
        assert len(part) == together or cost(tokens, part) <= size * tokens.longest
        assert all(set(unit) <= set(part) for unit in units if set(unit) & set(part))


def test_a_prompt_is_computed_twice_only_where_its_rows_do_not_fit() -> None:
    tokens = row_tokens([(4, [1, 2, 2]), (3, [3]), (5, [6])])
    assert tokens.longest == 11
    assert tokens.own_passes(1) == [[0, 1, 2], [3], [4]]
    assert tokens.own_passes(2) == [[0, 1, 2, 3], [4]]
    assert row_tokens([(6, [3, 3, 3, 3])]).own_passes(1) == [[0], [1], [2], [3]]
    assert row_tokens([(1, [3, 3, 3, 3])]).own_passes(2) == [[0, 1], [2, 3]], "of equal size"


def test_short_rows_beside_long_ones_do_not_make_a_pass_that_memory_was_not_planned_for() -> None:
    tokens = RowTokens([1] * 1000 + [500] * 60, packed=False)
    assert max(tokens.allocated(rows) for rows in tokens.own_passes(64)) <= 64 * 500
    prompts = RowTokens([1] * 256, [1000] * 256, [0] * 256)
    assert max(len(rows) for rows in prompts.own_passes(2)) < 20, "each row has a copy of the prompt's keys"


def test_ranks_share_the_rows_of_a_single_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = row_tokens([(5, [1, 2, 3, 4])])
    monkeypatch.setattr(distributed, "world_size", lambda: 4)
    shares = []
    for rank in range(4):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        shares.append(tokens.shares([[0], [1], [2], [3]], 8))
    assert shares == [[([0], True)], [([1], True)], [([2], True)], [([3], True)]]


def test_rows_with_the_same_prompt_are_found_in_sequences() -> None:
    rows = [EncodedSequence([3, 4], [5]), EncodedSequence([3], [6, 7]), EncodedSequence([3, 4], [])]
    assert RowTokens.of_sequences(rows, packed=True).own_passes(8) == [[2, 0, 1]]
    assert RowTokens([]).own_passes(3) == []
