"""Running statistics equal those of all values at once."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.shaping.statistics import RunningStatistics

QUICK = settings(max_examples=50, deadline=None)
BATCHES = st.lists(st.lists(st.floats(-1e3, 1e3, width=32), max_size=7), max_size=6)


@QUICK
@given(batches=BATCHES)
def test_equal_to_numpy_over_all_batches(batches: list[list[float]]) -> None:
    statistics = RunningStatistics()
    for batch in batches:
        statistics.update(torch.tensor(batch))
    values = np.array([value for batch in batches for value in batch], dtype=np.float64)
    assert statistics.count == len(values)
    if len(values):
        assert statistics.mean == pytest.approx(values.mean(), abs=1e-9)
        assert statistics.deviation == pytest.approx(values.std() if len(values) > 1 else 0.0, abs=1e-6)
        assert (statistics.minimum, statistics.maximum) == (values.min(), values.max())


@QUICK
@given(batches=BATCHES)
def test_state_survives_json(batches: list[list[float]]) -> None:
    statistics, other = RunningStatistics(), RunningStatistics()
    for batch in batches:
        statistics.update(torch.tensor(batch))
    other.load_state_dict(json.loads(json.dumps(statistics.state_dict(), allow_nan=False)))
    assert other == statistics


def test_the_deviation_is_0_for_fewer_than_two_values() -> None:
    statistics = RunningStatistics()
    assert statistics.deviation == 0.0
    statistics.update(torch.tensor([3.0]))
    assert (statistics.mean, statistics.deviation) == (3.0, 0.0)
