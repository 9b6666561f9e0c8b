from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.errors import DataError

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(lengths=LENGTHS, rows=st.integers(1, 7), seed=st.integers(0, 5))
def test_every_row_comes_once_an_epoch(lengths: list[int], rows: int, seed: int) -> None:
    batches = LengthBucketedBatches(lengths, seed=seed, rows_per_batch=rows)
    for epoch in (0, 1):
        parts = batches.epoch(epoch)
        assert sorted(row for batch in parts for row in batch) == list(range(len(lengths)))
        assert all(1 <= len(batch) <= rows for batch in parts)
        assert len(parts) == -(-len(lengths) // rows)


@given(lengths=LENGTHS, done=st.integers(0, 40))
def test_an_iteration_resumes_where_it_stopped(lengths: list[int], done: int) -> None:
    straight = list(islice(LengthBucketedBatches(lengths, seed=3, rows_per_batch=4), done + 5))
    first, resumed = (LengthBucketedBatches(lengths, seed=3, rows_per_batch=4) for _ in range(2))
    begun = list(islice(first, done))
    resumed.load_state_dict(first.state_dict())
    assert begun + list(islice(resumed, 5)) == straight


def test_order_depends_on_seed_and_epoch_only_and_similar_lengths_come_together() -> None:
    lengths = np.random.default_rng(0).integers(1, 200, 640).tolist()
    one, other = (LengthBucketedBatches(lengths, seed=seed, rows_per_batch=16) for seed in (1, 2))
    assert one.epoch(2) == LengthBucketedBatches(lengths, seed=1, rows_per_batch=16).epoch(2)
    assert one.epoch(2) != one.epoch(3)
    assert one.epoch(2) != other.epoch(2)
    cells = sum(16 * max(lengths[row] for row in batch) for batch in one.epoch(0))
    assert sum(lengths) > 0.9 * cells, "less than a tenth is padding"


def test_no_rows_are_refused() -> None:
    with pytest.raises(DataError, match="no rows"):
        LengthBucketedBatches([], seed=0, rows_per_batch=1)
