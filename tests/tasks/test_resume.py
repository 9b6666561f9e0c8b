"""A stage killed by SIGKILL at random moments and started again ends as one that was never killed, bit by bit."""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Protocol
from unittest.mock import patch

import pytest

from tasks.graph.results import HEADLINE_FILE
from tasks.running.artifacts import digest
from tasks.running.checkpoints import SECONDS_VARIABLE
from tasks.running.launch import PROCESSES_VARIABLE
from tasks.running.progress import WORK
from tests.tasks.golden_runs import SETTINGS, SHARED, Given, SharedRuns, changed, module

#: Longer runs than those of the golden metrics, so that there is something to interrupt.
POLICY = {
    "scale": {
        **SETTINGS["policy/ppo"],
        "optimiser": {**SHARED["with_critic"], "iterations": 6, "epochs": 2, "critic_warmup": 1, "replay": 2},
        "checkpoints": 5,
    }
}
#: Settings by argument of each golden run.
LONGER: dict[str, dict[str, Given]] = {
    "sft": {"spec": changed("backbone", "training.epochs", 4)},
    "model-segment": {"scale": changed("training", "epochs", 8)},
    "segment": POLICY,
    "segment-par": POLICY,  # its shaping has running statistics, and its rollouts go through a buffer
    "dpo": {"scale": changed("policy/dpo", "optimiser.epochs", 8)},
}
SEED = 2
ROOT = Path(__file__).parents[2]


class Running(Protocol):
    """A started process."""

    def kill(self) -> None: ...

    def ended(self) -> int | None:
        """Its exit code, None while it runs."""


class Forked:
    """A stage in a process forked from a fresh one that has only done the imports."""

    def __init__(self, module: str, line: list[str], folder: Path) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.tasks.test_resume", "tasks.sft", "tasks.reward_model", "tasks.policy"])
        self.process = context.Process(target=run_in, args=(module, line, str(folder)))
        with patch.dict(os.environ, PYTHONPATH=str(ROOT)):  # the server does not take this process's sys.path
            self.process.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()

    def ended(self) -> int | None:
        return self.process.exitcode


class Started:
    """A stage started from its command line."""

    def __init__(self, module: str, line: list[str], folder: Path) -> None:
        environment = {**os.environ, SECONDS_VARIABLE: "0", "PYTHONPATH": str(Path(__file__).parents[2])}
        with (folder / "log").open("a") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module, *line], cwd=folder, env=environment, stderr=log
            )

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def ended(self) -> int | None:
        return self.process.poll()


class TwoRanks(Started):
    """A stage in two processes; a kill takes its launcher alone, as a scheduler's or the system's would."""

    def __init__(self, module: str, line: list[str], folder: Path) -> None:
        before = os.environ.get(PROCESSES_VARIABLE)
        os.environ[PROCESSES_VARIABLE] = "2"
        try:
            super().__init__(module, line, folder)
        finally:
            del os.environ[PROCESSES_VARIABLE]
            os.environ |= {} if before is None else {PROCESSES_VARIABLE: before}


def run_in(module: str, line: list[str], folder: str) -> None:
    """The stage's entry point, as `python -m` in that folder would run it."""
    os.chdir(folder)
    os.environ[SECONDS_VARIABLE] = "0"
    sys.stderr = open("log", "a", buffering=1)  # noqa: SIM115
    import_module(module).main(line)


def checkpoints(folder: Path) -> set[str]:
    return {path.name for path in (folder / WORK).glob("*/*/step-*")}


def wait(running: Running, until: Callable[[], bool], seconds: float = 120.0) -> bool:
    """True when it came true, False when the process ended before."""
    deadline = time.monotonic() + seconds
    while running.ended() is None:
        if until():
            return True
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.001)
    return False


def killed(running: Running, folder: Path, delay: float) -> bool:
    """Kills it `delay` seconds after its next checkpoint; False when it ended before."""
    before = checkpoints(folder)
    if not wait(running, lambda: bool(checkpoints(folder) - before)):
        return False
    moment = time.monotonic() + delay
    if not wait(running, lambda: time.monotonic() >= moment):
        return False
    running.kill()
    return True


def killed_and_restarted(start: Callable[[], Running], folder: Path, rng: random.Random, kills: int) -> int:
    """Runs to the end through at most `kills` kills at random moments; returns how many there were."""
    made = 0
    while True:
        running = start()
        if made < kills and killed(running, folder, rng.expovariate(1 / 0.05)):
            made += 1
            continue
        wait(running, lambda: False)
        assert running.ended() == 0, (folder / "log").read_text()
        return made


def longer(golden: SharedRuns, name: str, out: Path) -> list[str]:
    return golden.command_line(name, **LONGER[name], out=out, seed=SEED)


@pytest.mark.parametrize("name", [name for name in LONGER if name != "segment"])  # killed in two ranks below
def test_a_killed_stage_ends_as_one_never_killed(
    golden: SharedRuns, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    import_module(module(name)).main(longer(golden, name, tmp_path / "never"))
    never = tmp_path / "never" / "result"
    assert not checkpoints(tmp_path), "without kills and with the default interval nothing is saved"
    out = tmp_path / "killed"
    start = partial(Forked, module(name), longer(golden, name, out), tmp_path)
    made = killed_and_restarted(start, tmp_path, random.Random(f"kill {name}"), 3)
    log = (tmp_path / "log").read_text()
    assert made >= 2, log
    assert log.count("continues after step") == made, log
    assert "damaged" not in log
    assert {path.name for path in out.iterdir()} == {"result", "record", HEADLINE_FILE}
    assert not checkpoints(tmp_path)
    for path in sorted(path.relative_to(never) for path in never.rglob("*") if path.is_file()):
        assert digest(out / "result" / path) == digest(never / path), path
    assert digest(out / "result") == digest(never)
    assert digest(out / HEADLINE_FILE) == digest(never.parent / HEADLINE_FILE)


@pytest.mark.platform
@pytest.mark.parametrize("name", ["segment"])
def test_a_killed_stage_of_two_ranks_ends_as_one_never_killed(golden: SharedRuns, tmp_path: Path, name: str) -> None:
    (tmp_path / "whole").mkdir()
    outputs = []
    for folder, kills in ((tmp_path / "whole", 0), (tmp_path, 2)):
        start = partial(TwoRanks, module(name), longer(golden, name, folder / "out"), folder)
        assert killed_and_restarted(start, folder, random.Random(f"ranks {name}"), kills) == kills
        outputs.append(folder / "out" / "result")
    assert (tmp_path / "log").read_text().count("continues after step") == 2
    assert digest(outputs[1]) == digest(outputs[0])
