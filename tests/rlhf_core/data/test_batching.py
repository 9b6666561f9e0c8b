from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.batching import LengthBucketedBatches, Position, padding_waste
from rlhf_core.errors import DataError, RecipeError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(lengths=LENGTHS, rows=st.integers(1, 7), pool=st.integers(1, 4), seed=st.integers(0, 5))
def test_every_row_comes_once_an_epoch(lengths: list[int], rows: int, pool: int, seed: int) -> None:
    batches = LengthBucketedBatches(lengths, seed=seed, rows_per_batch=rows, pool_batches=pool)
    for epoch in (0, 1):
        parts = batches.epoch(epoch)
        assert sorted(row for batch in parts for row in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= rows for batch in parts)
        assert len(parts) == -(-len(lengths) // rows)


@given(lengths=LENGTHS, tokens=st.integers(40, 120))
def test_token_batches_hold_every_row_within_the_limit(lengths: list[int], tokens: int) -> None:
    parts = LengthBucketedBatches(lengths, seed=0, tokens_per_batch=tokens).epoch(0)
    assert sorted(row for batch in parts for row in batch) == list(range(len(lengths)))
    assert all(len(batch) * max(lengths[row] for row in batch) <= tokens for batch in parts)


@given(lengths=LENGTHS, done=st.integers(0, 40))
def test_an_iteration_resumes_where_it_stopped(lengths: list[int], done: int) -> None:
    straight = list(islice(LengthBucketedBatches(lengths, seed=3, rows_per_batch=4), done + 5))
    first = LengthBucketedBatches(lengths, seed=3, rows_per_batch=4)
    begun = list(islice(first, done))
    resumed = LengthBucketedBatches(lengths, seed=3, rows_per_batch=4, position=first.position)
    assert begun + list(islice(resumed, 5)) == straight


def test_order_depends_on_seed_and_epoch_only() -> None:
    lengths = list(range(1, 50))
    make = lambda seed: LengthBucketedBatches(lengths, seed=seed, rows_per_batch=4)  # noqa: E731
    assert make(1).epoch(2) == make(1).epoch(2)
    assert make(1).epoch(2) != make(1).epoch(3)
    assert make(1).epoch(2) != make(2).epoch(2)


def test_similar_lengths_come_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 640).tolist()
    bucketed = LengthBucketedBatches(lengths, seed=0, rows_per_batch=16)
    unsorted = [list(range(start, start + 16)) for start in range(0, 640, 16)]
    assert bucketed.padding_waste() < 0.1 < 0.35 < padding_waste(lengths, unsorted)


def test_padding_waste_is_the_share_of_empty_cells() -> None:
    assert padding_waste([1, 3, 2], [[0, 1], [2]]) == pytest.approx(2 / 8)
    assert padding_waste([], []) == 0


def test_settings_and_rows_that_cannot_work_are_refused() -> None:
    with pytest.raises(RecipeError, match="exactly one batch size"):
        LengthBucketedBatches([1], seed=0)
    with pytest.raises(RecipeError, match="exactly one batch size"):
        LengthBucketedBatches([1], seed=0, rows_per_batch=1, tokens_per_batch=1)
    with pytest.raises(DataError, match="row 2: 9 tokens do not fit"):
        LengthBucketedBatches([1, 9], seed=0, tokens_per_batch=8)
    with pytest.raises(DataError, match="no rows"):
        LengthBucketedBatches([], seed=0, rows_per_batch=1)
    with pytest.raises(DataError, match="start afresh"):
        next(iter(LengthBucketedBatches([1], seed=0, rows_per_batch=1, position=Position(0, 5))))
