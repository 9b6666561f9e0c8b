"""The benchmarks' parts: sides take turns, ratios are of repeats, scripts run tiny, limits count padding."""

from __future__ import annotations

import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as everything
from benchmarks import token_statistics
from benchmarks.alternating import Row, Run, Side, alternate, peer_python, print_rows, speed_row
from benchmarks.limits import timed_models


def runs(*seconds: float, amount: float = 10.0) -> list[Run]:
    return [Run(s, 2 * s, amount, 0.0) for s in seconds]


def test_a_ratio_is_the_median_over_repeats_of_ours_against_the_peer() -> None:
    row = speed_row("work", "rows/s", runs(1.0, 2.0, 1.0), runs(4.0, 4.0, 3.0), 2.5)
    assert (row.ratio, row.low, row.high, row.processor_ratio) == (3.0, 2.0, 4.0, 3.0)
    assert (row.ours, row.peer) == (10.0, 2.5)
    assert row.reached
    assert not speed_row("work", "rows/s", runs(1.0), runs(2.0), 2.5).reached


def test_at_most_targets_are_missed_from_above(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        Row("memory", "MiB", ours, 10.0, ours / 10, ours / 10, ours / 10, ours / 10, 0.15, more_is_better=False)
        for ours in (1.0, 2.0)
    ]
    assert [row.reached for row in rows] == [True, False]
    print_rows(rows)
    shown = capsys.readouterr().out.splitlines()[1:]
    assert ["missed" in line for line in shown] == [False, True]


def test_sides_are_processes_that_take_turns(tmp_path: Path) -> None:
    """Each side's first run is thrown away but for its memory."""
    shape = {"tokens": 4, "vocabulary": 50, "backward": True}
    sides = [Side("token_statistics", name, shape) for name in ("ours", "peer")]
    found = alternate(sides, 2, tmp_path)
    assert [len(side) for side in found] == [2, 2]
    for side in found:
        assert {run.amount for run in side} == {4.0}
        assert all(run.seconds > 0 and run.processor_seconds > 0 for run in side)
        assert len({run.growth for run in side}) == 1


def test_a_side_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"(?s)ended with code 1.*no attribute 'nobody'"):
        alternate([Side("token_statistics", "nobody", {"tokens": 1, "vocabulary": 3, "backward": False})], 1, tmp_path)


def test_a_missing_peer_says_how_to_install_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="make bench-peers"):
        peer_python(tmp_path, "trl-1.16")
    everything.main(["--only", "dpo", "--peers", str(tmp_path), "--out", str(tmp_path)])
    assert "dpo: not run, the peer trl-1.16 is not installed" in capsys.readouterr().out
    assert (tmp_path / "benchmarks.png").stat().st_size > 1000


def test_the_token_statistics_report_time_and_memory_with_their_targets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def in_process(sides: list[Side], repeats: int, logs: Path) -> list[list[Run]]:
        amounts = [getattr(token_statistics, side.name)(**side.options)() for side in sides]
        return [[Run(seconds, seconds, amounts[0], growth)] for seconds, growth in ((1.0, 1e6), (2.0, 1e7))]

    monkeypatch.setattr(token_statistics, "CURVE", ((8, 40),))
    monkeypatch.setattr(token_statistics, "alternate", in_process)
    rows = token_statistics.rows(Namespace(repeats=1, threads=1, out=tmp_path))
    assert [row.target for row in rows] == [1.0, 0.15, 1.3, 0.4]
    assert [row.ratio for row in rows] == [0.5, 0.1, 0.5, 0.1]


class Model(torch.nn.Module):
    """Takes a tenth of a second forward."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        time.sleep(0.1)
        return self.weight * input_ids


def test_time_in_models_counts_padding_and_rows_that_have_ended() -> None:
    forward, backward = Model.forward, torch.Tensor.backward
    model, padded = Model(), torch.tensor([[5, 5], [5, 0]])
    with timed_models(Model, pad_id=0) as time_of:
        model(input_ids=padded)
        assert time_of.real == pytest.approx(0.75 * time_of.all)
        ended = torch.tensor([[1, 1, 1], [1, 1, 0]])
        model(input_ids=padded[:, :1], attention_mask=ended).sum().backward()
        assert time_of.last == 0.5
        assert time_of.all > 0.2
    assert Model.forward is forward
    assert torch.Tensor.backward is backward
