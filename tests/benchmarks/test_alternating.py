"""The benchmarks' parts: sides take turns, ratios are of repeats, scripts run tiny, limits count padding."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as everything
from benchmarks.alternating import Run, Side, Work, alternate, peer_python, speed_row
from benchmarks.limits import timed_models


def runs(*seconds: float, amount: float = 10.0) -> list[Run]:
    return [Run(s, 2 * s, amount) for s in seconds]


def test_a_ratio_is_the_median_over_repeats_of_ours_against_the_peer() -> None:
    row = speed_row("work", "rows/s", runs(1.0, 2.0, 1.0), runs(4.0, 4.0, 3.0), 2.5)
    assert (row.ratio, row.low, row.high, row.processor_ratio) == (3.0, 2.0, 4.0, 3.0)
    assert (row.ours, row.peer) == (10.0, 2.5)
    assert row.reached
    assert not speed_row("work", "rows/s", runs(1.0), runs(2.0), 2.5).reached


def ours(amount: float) -> Work:
    return lambda: amount


def test_sides_are_processes_that_take_turns_and_say_why_they_fail(tmp_path: Path) -> None:
    side = Side("tests.benchmarks.test_alternating", "ours", {"amount": 4.0})
    found = alternate([side, side], 2, tmp_path)
    assert [[run.amount for run in runs] for runs in found] == [[4.0, 4.0]] * 2, "the first is thrown away"
    assert all(run.seconds > 0 for runs in found for run in runs)
    with pytest.raises(SystemExit, match=r"(?s)ended with code 1.*no attribute 'nobody'"):
        alternate([replace(side, name="nobody")], 1, tmp_path)


def test_a_missing_peer_says_how_to_install_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="make bench-peers"):
        peer_python(tmp_path, "trl-1.16")
    everything.main(["--only", "dpo", "--peers", str(tmp_path), "--out", str(tmp_path)])
    assert "dpo: not run, the peer trl-1.16 is not installed" in capsys.readouterr().out
    assert (tmp_path / "benchmarks.png").stat().st_size > 1000


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
