"""Stages that a real fork server forks, beside the same stages in Pythons of their own: real DVC, no Prefect.

The tree is a copy of the project with a stage of its own, `probe`, which says what it sees and ends as it is told.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.slots import Grant
from flows.stage_run import Command, RunningStages, StageDone, StageFailed, run_stage, stage_environment
from flows.working_tree import started_processes
from tasks.dvc.stage_results import StageResults
from tasks.graph.dvc_files import STAGES as GRAPH_STAGES
from tasks.running import fork_server
from tasks.running.fork_server import ForkServer
from tests.chaos import wait_for
from tests.small_repository import PROJECT, clean_environment

PROBE = """
import argparse, atexit, json, os, resource, signal, sys, threading, time
from pathlib import Path

VERSION = 1

def facts():
    umask = os.umask(0o22); os.umask(umask)
    return {
        "argv": sys.argv, "name": __name__, "module": sys.modules["__main__"].__spec__.name, "path": sys.path,
        "cwd": os.getcwd(), "leads": os.getsid(0) == os.getpgid(0), "environment": dict(os.environ), "umask": umask,
        "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)],
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
        "threads": threading.active_count(), "flags": str(sys.flags), "unbuffered": sys.stdout.write_through,
        "encoding": sys.stdout.encoding, "stdin": os.path.realpath("/proc/self/fd/0"),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out"); parser.add_argument("--do", default="")
    given = parser.parse_args()
    out = Path(given.out); (out / "result").mkdir(parents=True)
    (out / "result" / "facts.json").write_text(json.dumps(facts()))
    atexit.register(lambda: print("bye"))
    print("to stdout"); print("to stderr", file=sys.stderr)
    verb, _, value = given.do.partition("=")
    if verb == "exit": sys.exit(int(value))
    if verb == "raise": raise ValueError("boom")
    if verb == "kill": os.kill(os.getpid(), int(value))
    if verb == "print": print("x" * 99 + "\\n" * 1, end=""); sys.stdout.write(("y" * 99 + "\\n") * int(value))
    if verb == "wait":
        (out / "began").touch()
        while not Path(value).exists(): time.sleep(0.05)
        if Path(value).read_text(): sys.exit(int(Path(value).read_text()))
        (out / "began").unlink()
    print("the end, without a line's end", end="")

if __name__ == '__main__':
    main()
"""
STAGES = {
    "plain": "python -m tasks.probe --out results/plain",
    "exits": "python -m tasks.probe --out results/exits --do exit=3",
    "killed": "python -m tasks.probe --out results/killed --do kill=9",
    "prints": "python -m tasks.probe --out results/prints --do print=20000",
    "waits": "python -m tasks.probe --out results/waits --do wait=go",
    "raises": "python -m tasks.probe --out results/raises --do raise",
}
CORE = Grant(1, (), 0.0).environment()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree").resolve()
    for part in ("flows", "tasks", "rlhf_core"):
        shutil.copytree(PROJECT / part, root / part)
    shutil.copy(PROJECT / "pyproject.toml", root)
    (root / "tasks" / "probe.py").write_text(PROBE)
    stages = {name: {"cmd": cmd, "outs": [f"results/{name}/result"]} for name, cmd in STAGES.items()}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    init = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
    subprocess.run(init, cwd=root, env=clean_environment(), check=True)
    return root


@pytest.fixture
def root(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The tree without results, as the project that this process runs."""
    monkeypatch.setattr(fork_server, "PROJECT", made)
    monkeypatch.chdir(made)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("REWARDSMITH_GPUS", "")
    for path in ("results", ".dvc/cache", ".work/failures"):
        shutil.rmtree(made / path, ignore_errors=True)
    for name in ("dvc.lock", "go"):
        (made / name).unlink(missing_ok=True)
    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # of tests before
    yield made
    forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.fixture
def server(root: Path) -> ForkServer:
    made = ForkServer(root, stage_environment(root, CORE))
    made.begin(["probe"] * 3)
    return made


def run(root: Path, name: str, server: ForkServer | None, running: RunningStages | None = None) -> StageDone:
    command = Command(STAGES[name], name, name, CORE)
    with closing(StageResults(root, [name])) as results:
        return run_stage(root, command, results, running=running or RunningStages(), log=print, server=server)


def log_of(root: Path, name: str) -> str:
    return (root / ".work" / "logs" / f"{name}.log").read_text()


def in_background(call: Callable[[], Any]) -> list[Any]:
    """Calls a function in a thread; the list gets its result, or the error."""
    ended: list[Any] = []

    def work() -> None:
        try:
            ended.append(call())
        except Exception as error:
            ended.append(error)

    threading.Thread(target=work, daemon=True).start()
    return ended


def both_ways(root: Path, server: ForkServer, name: str) -> list[tuple[Any, str, Any]]:
    """Returns how a stage ends, with its log and what it saw, when it is forked and when it is not."""
    found: list[tuple[Any, str, Any]] = []
    for how in (server, None):
        for path in ("results", ".dvc/cache"):
            shutil.rmtree(root / path, ignore_errors=True)
        (root / "dvc.lock").unlink(missing_ok=True)
        try:
            end: Any = run(root, name, how).outcome
        except StageFailed as failure:
            end = (failure.exit_code, failure.retry, str(failure))
        seen = root / "results" / name / "result" / "facts.json"
        found.append((end, log_of(root, name), json.loads(seen.read_text()) if seen.exists() else {}))
    return found


def test_a_forked_stage_sees_what_another_one_sees(root: Path, server: ForkServer) -> None:
    (forked, log, seen), (started, other_log, other) = both_ways(root, server, "plain")
    assert (forked, started) == ("ran", "ran")
    for facts in (seen, other):
        facts.pop("descriptors")  # `multiprocessing` keeps some
        for name in ("PYTEST_CURRENT_TEST", "_", "SHLVL", "PWD", "OLDPWD"):
            facts["environment"].pop(name, None)
    assert seen == other
    assert log == other_log
    assert "the end, without a line's endbye\n" in log


@pytest.mark.parametrize("name", ["exits", "killed", "prints", "raises"])
def test_a_forked_stage_ends_like_another_one(root: Path, server: ForkServer, name: str) -> None:
    (forked, log, _), (started, other_log, _) = both_ways(root, server, name)
    assert forked == started
    if name == "raises":
        assert forked[2] == "stage raises failed with exit code 1: ValueError: boom"
        assert 'tasks/probe.py", line' in log
    else:
        assert log.replace("Killed\n", "") == other_log.replace("Killed\n", "")  # some shells say so


def test_stages_run_side_by_side_are_noted_and_end_with_their_group(root: Path, server: ForkServer) -> None:
    running = RunningStages()
    ended = in_background(lambda: run(root, "waits", server, running))
    wait_for((root / "results/waits/result/facts.json").exists)
    assert run(root, "plain", server).outcome == "ran"
    assert {run for _, run in started_processes(root)} == {os.getpid()}
    running.end_all()
    wait_for(lambda: ended)
    assert str(ended[0]) == "stage waits was ended with its run"


def test_a_stage_ends_with_its_killed_flow(root: Path) -> None:
    code = (
        "from pathlib import Path; from tests.flows import test_fork_server as test; root = Path.cwd(); "
        "test.fork_server.PROJECT = root; environment = test.stage_environment(root, test.CORE); "
        "server = test.ForkServer(root, environment); server.begin(['probe'] * 3); test.run(root, 'waits', server)"
    )
    environment = clean_environment(PYTHONPATH=os.pathsep.join([str(root), str(PROJECT)]))
    flow = subprocess.Popen([sys.executable, "-c", code], cwd=root, env=environment)
    wait_for((root / "results/waits/result/facts.json").exists)
    assert flow.pid in {run for _, run in started_processes(root)}
    flow.kill()
    flow.wait()
    wait_for(lambda: flow.pid not in {run for _, run in started_processes(root)}, 60)


def test_a_killed_server_loses_no_stage(root: Path, server: ForkServer) -> None:
    ended = in_background(lambda: run(root, "waits", server))
    wait_for((root / "results/waits/result/facts.json").exists)
    os.kill(forkserver._forkserver._forkserver_pid, 9)  # type: ignore[attr-defined]
    wait_for(lambda: ended)
    assert ended[0].retry, "the run tries it again"
    assert run(root, "plain", server).outcome == "ran"


def test_what_a_new_python_would_do_otherwise_is_not_forked(root: Path, server: ForkServer) -> None:
    environment = stage_environment(root, CORE)
    command = STAGES["plain"]
    assert server.start(command, stage_environment(root, Grant(2, (), 0.0).environment())) is None
    assert server.start(f"{command} && true", environment) is None
    assert server.start(command.replace("tasks.probe", "other.probe"), environment) is None
    module = root / "rlhf_core" / "errors.py"
    module.write_text(module.read_text() + "\n")
    assert server.start(command, environment) is None, "its code has changed"


@pytest.mark.parametrize(
    ("variable", "value"),
    [("REWARDSMITH_GPUS", "0"), ("REWARDSMITH_PROCESSES", "2"), ("REWARDSMITH_FORK", "0"), ("", "")],
)
def test_devices_several_processes_and_few_stages_need_no_server(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, value)
    server = ForkServer(root, stage_environment(root, CORE))
    server.begin(["probe"] * (3 if variable else 2))
    assert forkserver._forkserver._forkserver_pid is None  # type: ignore[attr-defined]


@pytest.mark.platform
def test_what_stages_import_starts_no_thread() -> None:
    code = "import os; import tasks.running.fork_server; print(len(os.listdir('/proc/self/task')))"
    environment = clean_environment(**CORE, **fork_server.ALLOCATOR, **{fork_server.STAGES: " ".join(GRAPH_STAGES)})
    done = subprocess.run([sys.executable, "-c", code], cwd=PROJECT, env=environment, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
