"""`rewardsmith watch` on the notes of training stages, written step by step."""

from __future__ import annotations

import io
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from flows.progress import Bar
from rlhf_core.data.batching import LengthBucketedBatches
from rlhf_core.errors import RecipeError
from rlhf_core.supervised.config import TrainingConfig
from tasks.commands import watch_app as command
from tasks.running.checkpoints import CheckpointStore, RunCheckpoints
from tasks.running.live_history import ALARMS, EVALUATIONS, FILE, TRAINING, WORK, LiveHistory, begin_training
from tasks.running.live_stages import live_stages
from tasks.running.supervised import train_resumably
from tasks.running.watching import PLAIN_LEVELS, Watch, number, shown_stages, sparkline, stage_block
from tests.small_repository import clean_environment
from tests.test_documentation import ROOT

OUT = "results/testbed/par/policy/vanilla/0"
NAME = "policy par/vanilla 0"
ALARM = {"step": 3, "kind": "kl", "since": 1, "message": "kl is 9, above 8"}


def row(step: int) -> dict[str, float]:
    return {"step": step, "reward": 0.5 * step, "kl": 0.1 * step, "response_length": 30.0, "policy_loss": 1 / step}


class Training:
    """A policy's notes, as its process leaves them."""

    def __init__(self, root: Path, out: str = OUT, *, steps: int = 4, done: int = 0) -> None:
        self.root, self.out, self.folder = root, out, root / WORK / "policy-x"
        begin_training(self.folder, out, steps=steps, done=done)
        self.rows = [row(step) for step in range(1, done + 1)]
        self.history = LiveHistory(self.folder / FILE)

    def step(self) -> None:
        self.rows.append(row(len(self.rows) + 1))
        self.history.write(self.rows)

    def die(self) -> None:
        """Leaves the notes of a process that is not there."""
        path = self.folder / TRAINING
        path.write_text(json.dumps({**json.loads(path.read_text()), "pid": 2**22 + 1}))

    def finish(self, **files: Any) -> None:
        result = self.root / self.out / "result"
        result.mkdir(parents=True)
        for name, content in files.items():
            (result / name.replace("_", ".")).write_text(json.dumps(content) + "\n")
        shutil.rmtree(self.folder)


def test_each_step_is_a_line_with_its_values_and_the_time_left(tmp_path: Path) -> None:
    training, watch = Training(tmp_path), Watch(tmp_path)
    assert watch.look().steps == (f"{NAME}: step 0/4, just begun",)
    assert watch.look().steps == (), "nothing has changed"
    training.step()
    training.step()
    began = live_stages(tmp_path)[0].began
    os.utime(training.folder / FILE, (began + 20, began + 20))
    watch.now = lambda: began + 25
    LiveHistory(training.folder / EVALUATIONS).write([{"step": 2, "win_rate_vs_sft": 54.25}])
    line = f"{NAME}: step 2/4, reward 1, win rate 54.25, KL 0.2, length 30, loss 0.5, about 15 s left"
    assert watch.look().steps == (line,)
    training.step()
    training.step()
    assert watch.look().steps[0].endswith("step 4/4, reward 2, win rate 54.25, KL 0.4, length 30, loss 0.25, evaluates")


def test_the_pace_is_that_of_the_present_process(tmp_path: Path) -> None:
    training = Training(tmp_path, steps=10, done=4)
    training.step()
    stage = live_stages(tmp_path)[0]
    os.utime(training.folder / FILE, (stage.began + 3, stage.began + 3))
    assert live_stages(tmp_path)[0].seconds_left(stage.began + 3) == pytest.approx(15, abs=0.1)


def test_half_a_line_counts_when_it_is_whole(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.step()
    with (training.folder / FILE).open("a") as file:
        file.write('{"step": 2, "rew')
    assert live_stages(tmp_path)[0].step == 1
    with (training.folder / FILE).open("a") as file:
        file.write('ard": 3}\n')
    assert live_stages(tmp_path)[0].series["reward"] == [0.5, 3.0]


def test_an_alarm_rings_once_and_that_of_the_end_with_the_result(tmp_path: Path) -> None:
    training, watch = Training(tmp_path), Watch(tmp_path)
    watch.look()
    LiveHistory(training.folder / ALARMS).write([ALARM])
    assert watch.look().alarms == (f"ALARM {NAME}: kl at step 3: kl is 9, above 8",)
    assert watch.look().alarms == ()
    training.finish(alarms_jsonl={**ALARM, "kind": "end", "message": "lost"})
    changes = watch.look()
    assert (changes.alarms, changes.ends) == ((f"ALARM {NAME}: end at step 3: lost",), (f"{NAME}: done",))
    assert watch.look().ends == ()
    assert not watch.stages


def test_the_end_of_a_stage_says_what_became_of_it(tmp_path: Path) -> None:
    def ended(part: str, **end: Any) -> str:
        root = tmp_path / part
        training, watch = Training(root), Watch(root)
        watch.look()
        if end.get("dies"):
            training.die()
        else:
            training.finish(**end)
        if "message" in end:
            (root / ".work" / "failures").mkdir()
            failure = {
                "out": OUT,
                "message": end["message"],
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            }
            (root / ".work" / "failures" / "policy.json").write_text(json.dumps(failure))
        return watch.look().ends[0]

    assert ended("stopped", stopped_json={"reason": "too few are right"}) == f"{NAME}: stopped: too few are right"
    assert ended("failed", dies=True, message="loss is nan") == f"{NAME}: failed: loss is nan"
    assert ended("killed", dies=True).startswith(f"{NAME}: interrupted; the command that started it goes on")


def test_an_earlier_failure_of_a_stage_is_not_its_end(tmp_path: Path) -> None:
    (tmp_path / ".work" / "failures").mkdir(parents=True)
    failure = {"out": OUT, "message": "an earlier one", "time": "2001-01-01T00:00:00Z"}
    (tmp_path / ".work" / "failures" / "policy.json").write_text(json.dumps(failure))
    training, watch = Training(tmp_path), Watch(tmp_path)
    watch.look()
    training.finish()
    assert watch.look().ends == (f"{NAME}: done",)


def test_what_a_killed_process_left_is_not_shown_and_removed_by_the_next(tmp_path: Path) -> None:
    training, watch = Training(tmp_path), Watch(tmp_path)
    training.step()
    training.die()
    assert watch.look().steps == watch.look().ends == ()
    Training(tmp_path)
    assert watch.look().steps == (f"{NAME}: step 0/4, just begun",)


def test_stages_of_worlds_are_seen_and_rows_and_papers_choose(tmp_path: Path) -> None:
    Training(tmp_path)
    Training(tmp_path / ".work" / "studies" / "why" / "7", "results/key/why/policy/par/7")

    def names(*wanted: str) -> list[str]:
        watch = Watch(tmp_path, wanted)
        watch.look()
        return [stage.name for stage in watch.stages]

    assert names() == [NAME, "policy why/par 7 (key)"]
    assert names("par/vanilla") == names("vanilla") == [NAME]
    assert names("par") == [NAME, "policy why/par 7 (key)"], "a paper or a row of the name"
    assert names("why") == ["policy why/par 7 (key)"]


def test_a_sparkline_has_the_course_of_a_series() -> None:
    assert sparkline([1.0, 2.0, 3.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁"
    assert sparkline([1.0, float("nan"), 2.0]) == "▁ █"
    assert sparkline([float("nan")]) == " "
    assert sparkline(list(range(100))) == "▁▂▃▃▄▅▆▆▇█"
    assert sparkline([0.0, 1.0], PLAIN_LEVELS) == "_#"
    assert [number(x) for x in (0.123456, 12345.6, -7.0, float("nan"))] == ["0.1235", "12346", "-7", "nan"]


def test_a_run_shows_a_line_for_each_stage_that_trains(tmp_path: Path) -> None:
    training, text = Training(tmp_path), io.StringIO()
    console = Console(file=text, force_terminal=True, width=80, height=20, color_system=None)
    with Bar(3, tmp_path, console) as bar:
        bar.started("policy-par-vanilla-0")
        training.step()
        training.step()
        bar.look()
        LiveHistory(training.folder / ALARMS).write([ALARM])
        bar.look()
        shown = "".join(bar.lines)
        training.finish()
        bar.look()
        assert bar.lines == []
        bar.finished("policy-par-vanilla-0", "ran in 1.0 s", None)
    assert shown.startswith(f"{NAME}  step 2/4  about 0 s left  reward 1 ▁█  KL 0.2 ▁█")
    assert f"ALARM {NAME}: kl at step 3: kl is 9, above 8" in text.getvalue()
    assert "policy-par-vanilla-0 ran in 1.0 s" in text.getvalue()


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_stage_fits_the_terminal(tmp_path: Path, width: int) -> None:
    training, watch = Training(tmp_path, steps=4), Watch(tmp_path)
    for _ in range(3):
        training.step()
    watch.look()
    lines = shown_stages(watch, width, 24, "utf-8")
    assert max(map(len, lines)) < width
    text = " ".join("\n".join(lines).split())
    for part in (NAME, "step 3/4", "reward 1.5 ▁▅█", "KL 0.3 ▁", "length 30 ▁▁▁", "loss 0.3333 █▃▁", "left"):
        assert part in text
    assert len(stage_block(watch.stages[0], watch.now(), width)) == {60: 3, 80: 3, 120: 2}[width]


def test_more_stages_than_lines_are_said(tmp_path: Path) -> None:
    for number_ in range(5):
        Training(tmp_path / ".work" / "recipes" / str(number_)).step()
    watch = Watch(tmp_path)
    watch.look()
    assert len(watch.stages) == 5
    lines = shown_stages(watch, 60, 10, "utf-8")
    assert len(lines) == 9
    assert lines[-1] == "... 5 stages train; name rows to see fewer"


def test_a_training_leaves_notes_while_it_trains(tmp_path: Path) -> None:
    checkpoints = RunCheckpoints(CheckpointStore(tmp_path / WORK, "sft-x", "key"), 3600, "results/a/par/sft/b/0")
    model, data, watch = torch.nn.Linear(2, 1), torch.ones(4, 2), Watch(tmp_path)
    lines: list[str] = []

    def measured(step: int) -> dict[str, float]:
        lines.extend(watch.look().steps)
        return {}

    train_resumably(
        model,
        lambda rows: (model(data[list(rows)]).sum(), float(len(rows)), {}),
        LengthBucketedBatches([1] * 4, seed=0, rows_per_batch=2),
        3,
        TrainingConfig(updates=3, batch=2, microbatch=2, learning_rate=0.1),
        lambda rows: float(len(rows)),
        checkpoints=checkpoints,
        label="x",
        history_every=1,
        measured=measured,
    )
    assert [line.split(",")[0] for line in lines] == [f"sft par/b 0 (a): step {step}/3" for step in (0, 1, 2)]
    assert "loss" in lines[-1]


def on_pty(root: Path, *, until: str, **environment: str) -> tuple[str, int]:
    """Runs `rewardsmith watch` on a terminal of 60 columns; interrupts it when the text is there."""
    (root / "params.yaml").touch()
    main, terminal = pty.openpty()
    given = {"TERM": "xterm", "COLUMNS": "60", "LINES": "24", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tasks.command_line", "watch"],
        cwd=root,
        env=clean_environment(**given, **environment),
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a job in the background ignores it
    )
    os.close(terminal)
    shown, deadline = b"", time.monotonic() + 60
    while until.encode() not in shown and time.monotonic() < deadline:
        shown += os.read(main, 65536)
    process.send_signal(signal.SIGINT)
    status = process.wait(timeout=30)
    with suppress(OSError):  # nothing is left to read
        shown += os.read(main, 65536)
    os.close(main)
    return shown.decode(), status


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}], ids=["in place", "without colours"])
def test_ctrl_c_ends_the_command_quietly(tmp_path: Path, environment: dict[str, str]) -> None:
    (tmp_path / "params.yaml").write_text("{}\n")
    training = Training(tmp_path)
    training.step()
    shown, status = on_pty(tmp_path, until="step 1/4", **environment)
    assert status == 0
    assert "Traceback" not in shown
    assert "Abort" not in shown
    assert ("\x1b[" in shown) == (not environment)


def test_without_anything_to_watch_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text("suite: {seeds: [0], scale_seeds: {default: [0]}}\n")
    monkeypatch.chdir(tmp_path)
    command.watch([])
    assert capsys.readouterr().out.strip() == command.NOTHING
    with pytest.raises(RecipeError, match="unknown paper or row 'nosuch'"):
        command.watch(["nosuch"])
