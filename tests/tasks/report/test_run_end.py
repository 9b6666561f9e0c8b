"""The end of a run: rows beside their baselines, rows without results, the next command, on narrow terminals too."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flows.stage_run import StageFailed, write_failure
from tasks.command_line import commands
from tasks.commands.rows import print_run_end
from tasks.graph.names import DEMO_ALL
from tasks.report.baselines import baselines
from tests.small_repository import PROJECT
from tests.tasks.report.test_rows_compared import run

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
    print_run_end(root, paper, rows, seeds, scale="testbed", full=full)
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
    assert [len(line) for line in lines if len(line) > width and not line.startswith("Next")] == []
    every = " ".join(" ".join(line.split()) for line in lines if line.startswith("bandit"))
    assert "-4.5 [-10.9, +1.9]" in every
    assert every.endswith("1 of 2")
    assert [line for line in lines if line.startswith("segment ")][-1].split()[-1] == "none"
    assert "Bandit (Sequence): undecided" in " ".join(text.split())
    assert "its alarm rang" in " ".join(text.split())
    assert lines[-1] == "Next: rewardsmith compare segment/segment segment/bandit"


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_run_ends_with_the_rows(status: int, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where some of its stages failed, and not after a refusal."""
    run(root, "my-study/whole", 0, 60.0)
    monkeypatch.chdir(root)
    monkeypatch.setattr("tasks.commands.run_app.run_flow", lambda *_, **__: status)
    done = CliRunner().invoke(commands, ["run", "my-study", "--seed", "0"])
    assert done.exit_code == status
    assert ("Next: rewardsmith run my-study/again --seed 0" in done.output) == (status < 2)


def test_rows_without_results_are_one_line(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(root, "my-study/whole", 0, 60.0)
    lines = ended(root, capsys, "my-study").splitlines()
    assert "my-study/again: not run" in lines
    assert lines[-1] == "Next: rewardsmith run my-study/again"
    stopped = root / "results/testbed/my-study/policy/again/0/result"
    stopped.mkdir(parents=True)
    (stopped / "stopped.json").write_text('{"reason": "too few are right", "metrics": {}}')
    assert "my-study/again: stopped: too few are right" in ended(root, capsys, "my-study")
    many = ended(root, capsys, "segment", full=True).splitlines()
    assert len(many) <= 3
    assert "more: not run" in " ".join(many)


def test_a_failed_row_is_said_to_have_failed_with_its_error(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command is proposed again only after the error is mended; failures of an earlier run do not count."""
    run(root, "my-study/whole", 0, 60.0)
    failure = StageFailed(
        "stage a:policy-again-0 failed with exit code 1: reward function own:f", exit_code=1, retry=False
    )
    out = "results/testbed/my-study/policy/again/0"
    write_failure(root, "a_policy-again-0", address="a:policy-again-0", out=out, failure=failure)
    said = "my-study/again: failed: reward function own:f"
    command = "rewardsmith run my-study/again --seed 0"

    def ended_since(began: float) -> list[str]:
        print_run_end(root, "my-study", [], [0], scale="testbed", full=False, began=began)
        return capsys.readouterr().out.splitlines()

    monkeypatch.setenv("COLUMNS", "200")
    now = time.time()
    *before, last = ended_since(now - 60)
    assert said in before
    assert last == f"Next: mend this error (log: .work/logs/a_policy-again-0.log), then {command}"
    *before, last = ended_since(now + 60)
    assert "my-study/again: not run" in before
    assert last == f"Next: {command}"
    print_run_end(root, "my-study", [], [0], scale="testbed", full=False)
    assert "my-study/again: not run" in capsys.readouterr().out, "a run that finds nothing to do has no failures"
    write_failure(root, "sft", address="sft-phi3-mini-0", out="results/testbed/shared/sft/phi3-mini/0", failure=failure)
    (root / ".work/failures/a_policy-again-0.json").unlink()
    assert said in ended_since(now - 60), "of a stage above the row"


def test_a_single_row_is_compared_with_a_row_that_starts_from_the_same_sft_model(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(root, "my-study/whole", 1, 60.0)
    run(root, "demo/vanilla", 1, 50.0)  # from another SFT model
    run(root, "segment/bandit", 0, 50.0)  # in another world
    assert ended(root, capsys, "my-study", "whole", seeds=(1,)).splitlines()[-1] == "Next: rewardsmith rows"
    run(root, "segment/token", 1, 50.0)
    last = ended(root, capsys, "my-study", "whole", seeds=(1,)).splitlines()[-1]
    assert last == "Next: rewardsmith compare segment/token my-study/whole --seed 1"
    run(root, "my-study/again", 1, 50.0)
    last = ended(root, capsys, "my-study", "whole", seeds=(1,)).splitlines()[-1]
    assert last == "Next: rewardsmith compare my-study/again my-study/whole --seed 1"


def test_headline_rows_of_several_papers_have_their_own_baselines(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ("segment/segment", "segment/bandit", "par/par", "par/vanilla"):
        run(root, row, 0, 60.0 if row in ("segment/segment", "par/par") else 50.0)
    text = ended(root, capsys, DEMO_ALL)
    assert cells(text, "bandit")[2] == cells(text, "vanilla")[2] == "-10.0"
    assert "phi3-mini" not in text, "win rates are over the SFT model, which has none itself"


@pytest.mark.parametrize(
    ("paper", "row", "expected"),
    [
        ("par", "vanilla", ("par",)),
        ("par", "par", ("par",)),
        ("hackability", "length-clip", ("length-vanilla",)),
        ("demo", "segment", ("vanilla",)),
        ("sentence", "bench-response", ("bench-da", "bench-sentence")),
        ("segment", "phi3-mini", ("phi3-mini",)),
    ],
)
def test_baselines(paper: str, row: str, expected: tuple[str, ...]) -> None:
    assert baselines(PROJECT, paper, row) == expected
