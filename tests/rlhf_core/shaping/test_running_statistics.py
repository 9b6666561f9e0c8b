"""Running statistics equal those of all values at once, on one rank and over several."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
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


def test_batches_of_all_ranks_are_taken_in_once(monkeypatch: pytest.MonkeyPatch) -> None:
    other = torch.tensor([2.0, 7.0, 0.5, 6.5, 7.5], dtype=torch.float64)  # the second rank's 6.5 and 7.5

    def all_gather(everyone: list[torch.Tensor], own: torch.Tensor) -> None:
        everyone[0].copy_(own)
        everyone[1].copy_(other)

    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "all_gather", all_gather)
    statistics = RunningStatistics()
    statistics.update(torch.tensor([1.0, 2.0]))
    values = np.array([1.0, 2.0, 6.5, 7.5])
    assert (statistics.count, statistics.minimum, statistics.maximum) == (4, 1.0, 7.5)
    assert (statistics.mean, statistics.deviation) == pytest.approx((values.mean(), values.std()))


def _rank(rank: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    statistics = RunningStatistics()
    for batch in ([[1.0, 2.0], [10.0]], [[], [4.0, -3.0]]):
        statistics.update(torch.tensor(batch[rank]))
    Path(folder, f"{rank}.json").write_text(json.dumps(statistics.state_dict()))
    dist.destroy_process_group()


@pytest.mark.platform
def test_every_rank_has_the_statistics_of_all(tmp_path: Path) -> None:
    mp.spawn(_rank, (str(tmp_path),), nprocs=2)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first == second
    values = np.array([1.0, 2.0, 10.0, 4.0, -3.0])
    assert first["count"] == 5
    assert first["mean"] == pytest.approx(values.mean())
    assert first["m2"] == pytest.approx(values.var() * 5)
    assert (first["minimum"], first["maximum"]) == (-3.0, 10.0)
