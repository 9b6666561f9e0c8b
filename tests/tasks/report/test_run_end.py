"""The end of a run: rows beside their baselines, rows without results, on narrow terminals too."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.stage_run import RunningStages, StageFailed, noted_failure
from tasks.command_line import commands
from tasks.commands.run_app import print_run_end
from tasks.dvc.pipelines import Request
from tasks.graph.names import DEMO_ALL
from tasks.report.row_runs import baseline
from tests.small_repository import PROJECT
from tests.tasks.report.test_comparison import run

STUDY = """
base:
  kind: reward
  backbone: phi3-mini
  reward_model: segment/segment
  readout: {segmenter: {kind: entropy, cutoff: "1.75"}, read: value}
  credit: even_split
  optimiser: {kind: ppo, value_clip: 0.25}
whole: {title: Even split}
again: {title: 'Repeat [/b]', credit: repeat}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with a study of the user's own, in which nothing has run."""
    shutil.copytree(PROJECT / "params", tmp_path / "params")
    (tmp_path / "params.yaml").symlink_to(PROJECT / "params.yaml")
    (tmp_path / "params/my-study").mkdir()
    (tmp_path / "params/my-study/rows.yaml").write_text(STUDY)
    return tmp_path


def ended(
    root: Path,
    capsys: pytest.CaptureFixture[str],
    paper: str,
    *rows: str,
    seeds: tuple[int, ...] = (),
    full: bool = False,
) -> str:
    print_run_end(root, Request(paper, full=full, rows=rows, seeds=seeds))
    return capsys.readouterr().out


def cells(text: str, row: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(row)).split()


@pytest.mark.parametrize("width", [60, 80])
def test_each_row_is_beside_its_baseline(
    root: Path, width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    for seed in (0, 1):
        run(root, "segment/segment", seed, 60.0 + seed, hacking_alarms=0)
        run(root, "segment/bandit", seed, 56.0, alarm="kl" if seed else "", hacking_alarms=seed)
    text = ended(root, capsys, "segment", "bandit")
    lines = text.splitlines()
    assert [len(line) for line in lines if len(line) > width] == []
    every = " ".join(" ".join(line.split()) for line in lines if line.startswith("bandit"))
    assert "−4.5 [−10.9, +1.9]" in every
    assert every.endswith("1 of 2")
    assert [line for line in lines if line.startswith("segment ")][-1].split()[-1] == "none"
    assert "Bandit (Sequence): undecided" in " ".join(text.split())
    assert "its alarm rang" in " ".join(text.split())


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_run_ends_with_the_rows(status: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where some of its stages failed, and not after a refusal."""
    run(root, "my-study/whole", 0, 60.0)
    monkeypatch.chdir(root)
    monkeypatch.setattr("tasks.commands.run_app.run_flow", lambda *_, **__: status)
    done = CliRunner().invoke(commands, ["run", "my-study", "--seed", "0"])
    assert done.exit_code == status
    assert ("my-study/again: not run" in done.output) == (status < 2)


def test_rows_without_results_are_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root, "my-study/whole", 0, 60.0)
    lines = ended(root, capsys, "my-study").splitlines()
    assert "my-study/again: not run" in lines
    stopped = root / "results/testbed/my-study/policy/again/0/result"
    stopped.mkdir(parents=True)
    (stopped / "stopped.json").write_text('{"reason": "too few are right", "metrics": {}}')
    assert "my-study/again: stopped: too few are right" in ended(root, capsys, "my-study")
    many = ended(root, capsys, "segment", full=True).splitlines()
    assert len(many) <= 3
    assert "more: not run" in " ".join(many)


def test_a_failed_row_is_said_to_have_failed_with_its_error_and_log(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Failures of an earlier run do not count; one of a stage above the row does."""
    run(root, "my-study/whole", 0, 60.0)
    failure = StageFailed(
        "stage a:policy-again-0 failed with exit code 1: reward function own:f", exit_code=1, retry=False
    )

    def ended_since(began: float) -> list[str]:
        print_run_end(root, Request("my-study", seeds=(0,)), began)
        return capsys.readouterr().out.splitlines()

    now = time.time()
    for out in ("my-study/policy/again/0", "shared/sft/phi3-mini/0"):
        noted = {"address": "a:0", "out": f"results/testbed/{out}", "running": RunningStages()}
        with pytest.raises(StageFailed), noted_failure(root, "a_policy-again-0", **noted):
            raise failure
        log = ".work/logs/a_policy-again-0.log"
        assert f"my-study/again: failed: reward function own:f (log: {log})" in ended_since(now - 60)
        assert "my-study/again: not run" in ended_since(now + 60)


def test_headline_rows_of_several_papers_have_their_own_baselines(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ("segment/segment", "segment/bandit", "par/par", "par/vanilla"):
        run(root, row, 0, 60.0 if row in ("segment/segment", "par/par") else 50.0)
    text = ended(root, capsys, DEMO_ALL)
    assert cells(text, "bandit")[2] == cells(text, "vanilla")[2] == "−10.0"
    assert "phi3-mini" not in text, "win rates are over the SFT model, which has none itself"


@pytest.mark.parametrize(
    ("paper", "row", "expected"),
    [
        ("par", "vanilla", "par"),
        ("par", "par", "par"),
        ("hackability", "length-clip", "length-vanilla"),
        ("demo", "segment", "vanilla"),
        ("sentence", "bench-response", "bench-da"),
        ("segment", "phi3-mini", "phi3-mini"),
    ],
)
def test_the_baseline_of_a_row(paper: str, row: str, expected: str) -> None:
    assert baseline(PROJECT, paper, row) == expected
