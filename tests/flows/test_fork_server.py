"""Stages that a real fork server forks, beside the same stages in Pythons of their own: real DVC, no Prefect.

The tree is a copy of the project with a stage of its own, `probe`, which says what it sees and ends as it is told.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from flows import fork_server, stage_run
from flows.fork_server import ForkServer
from flows.slots import Grant
from flows.stage_run import RunningStages, StageDone, StageFailed, run_stage_process
from flows.working_tree import end_orphans, marked_groups
from tests.chaos import wait_for
from tests.small_repository import PROJECT, clean_environment
from tests.tasks import tiny_pipeline

PROBE = """
import argparse, atexit, json, os, resource, signal, sys, threading, time
from pathlib import Path

VERSION = 1

def facts():
    from tasks.running import process_start
    umask = os.umask(0o22); os.umask(umask)
    return {
        "argv": sys.argv, "name": __name__, "module": sys.modules["__main__"].__spec__.name, "path": sys.path,
        "cwd": os.getcwd(), "leads": os.getsid(0) == os.getpgid(0), "environment": dict(os.environ), "umask": umask,
        "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS, resource.RLIMIT_CORE)],
        "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE)],
        "threads": threading.active_count(), "flags": str(sys.flags), "unbuffered": sys.stdout.write_through,
        "encoding": sys.stdout.encoding, "stdin": os.path.realpath("/proc/self/fd/0"),
        "command": Path("/proc/self/cmdline").read_text().split("\\0"),
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
    if verb == "thread":
        threading.Thread(target=lambda: (time.sleep(0.5), print("by a thread, later"))).start()
    if verb == "wait":
        (out / "began").touch()
        while not Path(value).exists(): time.sleep(0.05)
        if Path(value).read_text(): sys.exit(int(Path(value).read_text()))
        (out / "began").unlink()
    print("the end, without a line's end", end="")

if __name__ == '__main__':
    main()
"""
THREADED = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()\n"
STAGES = {
    "plain": "python -m tasks.probe --out results/plain",
    "exits": "python -m tasks.probe --out results/exits --do exit=3",
    "passes": "python -m tasks.probe --out results/passes --do exit=75",
    "raises": "python -m tasks.probe --out results/raises --do raise",
    "killed": "python -m tasks.probe --out results/killed --do kill=9",
    "prints": "python -m tasks.probe --out results/prints --do print=20000",
    "thread": "python -m tasks.probe --out results/thread --do thread",
    "waits": "python -m tasks.probe --out results/waits --do wait=go",
    "shell": "python -m tasks.probe --out results/shell && echo by a shell",
}
CORE = Grant(1, (), 0.0).environment()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tree").resolve()
    for part in ("flows", "tasks", "rlhf_core"):
        shutil.copytree(PROJECT / part, root / part)
    shutil.copy(PROJECT / "pyproject.toml", root)
    (root / "tasks" / "probe.py").write_text(PROBE)
    (root / "tasks" / "threaded.py").write_text(THREADED)
    stages = {name: {"cmd": cmd, "outs": [f"results/{name}/result"]} for name, cmd in STAGES.items()}
    (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
    init = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
    subprocess.run(init, cwd=root, env=clean_environment(), check=True)
    return root


@pytest.fixture
def root(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree without results, as the project that this process runs."""
    for module in (fork_server, stage_run):
        monkeypatch.setattr(module, "PROJECT", made)
    monkeypatch.setattr(fork_server, "OF_STAGE", {*fork_server.OF_STAGE, "PYTEST_CURRENT_TEST"})
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("REWARDSMITH_GPUS", "")
    for path in ("results", ".dvc/cache", ".work/failures"):
        shutil.rmtree(made / path, ignore_errors=True)
    for name in ("dvc.lock", "go", ".dvc/tmp/rwlock"):  # a killed stage leaves its lock
        (made / name).unlink(missing_ok=True)
    return made


@pytest.fixture
def server(root: Path) -> Iterator[ForkServer]:
    with closing(ForkServer(root, logging.getLogger("flow"))) as server:
        server.begin(["probe"] * 3)
        yield server


def run(root: Path, name: str, server: ForkServer | None, running: RunningStages | None = None) -> StageDone:
    names = {"address": name, "name": name, "out": f"results/{name}"}
    running = running or RunningStages()
    return run_stage_process(root, **names, environment=CORE, running=running, log=print, server=server)


def facts(root: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((root / "results" / name / "result" / "facts.json").read_text())
    return found


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


def both_ways(root: Path, server: ForkServer, name: str) -> list[tuple[Any, str]]:
    """Returns how a stage ends, with its log, when it is forked and when it is not."""
    found: list[tuple[Any, str]] = []
    for how in (server, None):
        for path in ("results", ".dvc/cache"):
            shutil.rmtree(root / path, ignore_errors=True)
        (root / "dvc.lock").unlink(missing_ok=True)
        try:
            end: Any = run(root, name, how).outcome
        except StageFailed as failure:
            end = (failure.exit_code, failure.retry, without_shell(str(failure)))
        found.append((end, without_shell(log_of(root, name))))
    return found


def without_shell(text: str) -> str:
    """Returns a text without what some shells (dash, not bash) say of a killed command by themselves."""
    return text.replace("Killed\n", "").replace("exited with 137", "exited with -9")


def test_a_forked_stage_sees_what_another_one_sees(root: Path, server: ForkServer) -> None:
    assert run(root, "plain", server).outcome == "ran"
    forked, log = facts(root, "plain"), log_of(root, "plain")
    shutil.rmtree(root / "results")
    shutil.rmtree(root / ".dvc" / "cache")
    (root / "dvc.lock").unlink()
    assert run(root, "plain", None).outcome == "ran"
    started = facts(root, "plain")
    assert forked["environment"].pop("REWARDSMITH_STAGE") == started["environment"].pop("REWARDSMITH_STAGE")
    assert "tasks.dvc.fork_server" in forked.pop("command")
    assert "tasks.probe" in started.pop("command")
    for part in (forked, started):
        part["environment"].pop("PYTEST_CURRENT_TEST", None)
    for name in ("_", "SHLVL", "PWD", "OLDPWD"):  # a shell's own
        started["environment"].pop(name, None)
        forked["environment"].pop(name, None)
    assert forked == started
    assert log == log_of(root, "plain")
    assert {"to stdout", "to stderr", "bye"} & set(log.splitlines()) == {"to stdout", "to stderr"}
    assert "the end, without a line's endbye\n" in log


@pytest.mark.parametrize("name", ["exits", "passes", "killed", "prints", "thread", "shell"])
def test_a_forked_stage_ends_like_another_one(root: Path, server: ForkServer, name: str) -> None:
    forked, started = both_ways(root, server, name)
    assert forked == started
    assert not server._over


def test_an_error_has_its_traceback(root: Path, server: ForkServer) -> None:
    (forked, log), (started, _) = both_ways(root, server, "raises")
    assert forked == started
    assert forked[2] == "stage raises failed with exit code 1: ValueError: boom"
    assert 'tasks/probe.py", line' in log


def test_a_restored_stage_leaves_no_process(root: Path, server: ForkServer) -> None:
    assert run(root, "plain", server).outcome == "ran"
    shutil.rmtree(root / "results")
    assert run(root, "plain", server).outcome == "restored"
    assert run(root, "plain", server).outcome == "unchanged"
    assert server._process is not None
    assert psutil.Process(server._process.pid).children(recursive=True) == []


def test_its_processes_are_marked_with_its_name_and_end_with_their_group(root: Path, server: ForkServer) -> None:
    assert marked_groups(root) == {}
    running = RunningStages()
    ended = in_background(lambda: run(root, "waits", server, running))
    wait_for((root / "results/waits/began").exists)
    ((group, note),) = marked_groups(root).items()
    assert (note["stage"], note["pid"]) == ("waits", os.getpid())
    members = [p for p in psutil.process_iter() if p.pid and os.getpgid(p.pid) == group]
    assert len(members) == 2, "DVC's and the stage's"
    assert stage_run.group_memory_gb(group) > 0.05
    running.end_all()
    wait_for(lambda: ended)
    assert str(ended[0]) == "stage waits was ended with its run"
    assert marked_groups(root) == {}
    alive = [member for member in members if member.is_running() and member.status() != psutil.STATUS_ZOMBIE]
    assert alive == []


def test_a_stage_that_outlives_a_killed_flow_is_found(root: Path) -> None:
    code = (
        "import logging, sys; from pathlib import Path; from flows.fork_server import ForkServer; "
        "from flows.slots import Grant; from flows.stage_run import RunningStages, run_stage_process; "
        "server = ForkServer(Path.cwd(), logging.getLogger()); server.begin(['probe'] * 3); "
        "run_stage_process(Path.cwd(), address='waits', name='waits', out='results/waits', "
        "environment=Grant(1, (), 0.0).environment(), running=RunningStages(), log=print, server=server)"
    )
    flow = subprocess.Popen([sys.executable, "-c", code], cwd=root, env=clean_environment(PYTHONPATH=str(root)))
    wait_for((root / "results/waits/began").exists)
    (fork_server_process,) = psutil.Process(flow.pid).children()
    flow.kill()
    flow.wait()
    wait_for(lambda: not fork_server_process.is_running() or fork_server_process.status() == psutil.STATUS_ZOMBIE)
    assert len(marked_groups(root)) == 1
    assert end_orphans(root) == ["ended stage waits, left running by a killed flow"]
    assert marked_groups(root) == {}


@pytest.mark.parametrize(("go", "fails"), [("", False), ("3", True)])
def test_a_killed_server_loses_no_stage(
    root: Path, server: ForkServer, caplog: pytest.LogCaptureFixture, go: str, fails: bool
) -> None:
    ended = in_background(lambda: run(root, "waits", server))
    wait_for((root / "results/waits/began").exists)
    assert server._process is not None
    server._process.kill()
    server._process.wait()
    (root / "go.new").write_text(go)
    (root / "go.new").rename(root / "go")
    wait_for(lambda: ended)
    if fails:
        assert str(ended[0]).startswith("stage waits failed with exit code 3")
    else:
        assert ended[0].outcome == "ran"
    assert run(root, "plain", server).outcome == "ran"
    assert "stages start in Pythons of their own from here on" in caplog.text


def test_changed_code_is_not_forked(root: Path, server: ForkServer, caplog: pytest.LogCaptureFixture) -> None:
    assert run(root, "plain", server).outcome == "ran"
    module = root / "rlhf_core" / "errors.py"
    before = module.read_text()
    try:
        module.write_text(before + "\n# changed\n")
        assert run(root, "prints", server).outcome == "ran"
    finally:
        module.write_text(before)
    assert f"{module} changed since the run began" in caplog.text


def test_a_library_with_threads_is_not_forked(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(ForkServer(root, logging.getLogger("flow"))) as server:
        server.begin(["probe", "threaded", "probe"])
        assert run(root, "plain", server).outcome == "ran"
    assert "an imported library started 1 thread(s)" in caplog.text


def test_libraries_that_cannot_be_imported_are_named(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(ForkServer(root, logging.getLogger("flow"))) as server:
        server.begin(["probe", "nosuch", "probe"])
        assert run(root, "plain", server).outcome == "ran"
    assert "it ended while it imported (log in .work/logs/fork-server.log)" in caplog.text
    assert "nosuch" in log_of(root, "fork-server")


def test_another_environment_is_not_forked(root: Path, server: ForkServer) -> None:
    assert server.start("plain", fork_server.stage_environment(root, Grant(2, (), 0.0).environment())) is None


@pytest.mark.parametrize(
    ("variable", "value"), [("REWARDSMITH_GPUS", "0"), ("REWARDSMITH_PROCESSES", "2"), ("REWARDSMITH_FORK", "0")]
)
def test_devices_and_several_processes_are_not_forked(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with closing(ForkServer(root, logging.getLogger("flow"))) as server:
        server.begin(["probe"] * 3)
        assert server._process is None


def test_few_stages_are_not_forked(root: Path) -> None:
    with closing(ForkServer(root, logging.getLogger("flow"))) as server:
        server.begin(["probe"] * 2)
        assert server._process is None


def test_a_server_that_the_command_began_is_the_runs(root: Path) -> None:
    log = logging.getLogger("flow")
    with fork_server.preloading_fork_server(root, ["probe"] * 3):
        server = fork_server.server_of_run(root, log)
        assert server._process is not None
        assert run(root, "plain", server).outcome == "ran"
        with closing(fork_server.server_of_run(root / "elsewhere", log)) as other:
            assert other is not server
    assert server._process.poll() is not None
    assert fork_server.server_of_run(root, log) is not server


def test_a_server_of_another_environment_is_not_the_runs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fork_server.preloading_fork_server(root, ["probe"] * 3):
        monkeypatch.setenv("PROBE_OF_THE_ENVIRONMENT", "1")
        assert fork_server.server_of_run(root, logging.getLogger("flow"))._process is None


def test_it_ends_while_it_imports(root: Path) -> None:
    server = ForkServer(root, logging.getLogger("flow"))
    server.begin(["probe"] * 3)
    ended = in_background(lambda: server.start("plain", fork_server.stage_environment(root, CORE)))
    server.close()
    wait_for(lambda: ended)
    assert ended == [None]
    assert server._process is not None
    assert server._process.returncode == -signal.SIGTERM


def test_stages_run_side_by_side(root: Path, server: ForkServer) -> None:
    ended = in_background(lambda: run(root, "waits", server))
    wait_for((root / "results/waits/began").exists)
    assert run(root, "plain", server).outcome == "ran"
    (root / "go").touch()
    wait_for(lambda: ended)
    assert ended[0].outcome == "ran"


@pytest.mark.platform
def test_results_of_forked_stages_are_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data, tokenizer and an SFT model, which torch trains, bit for bit."""
    monkeypatch.setattr(fork_server, "OF_STAGE", {*fork_server.OF_STAGE, "PYTEST_CURRENT_TEST"})
    digests: dict[str, list[str]] = {}
    for way in ("forked", "started"):
        root = tmp_path / way
        root.mkdir()
        for name in ("data", "tokenizer", "backbone", "evaluation"):
            (root / f"{name}.yaml").write_text(yaml.safe_dump(tiny_pipeline.SETTINGS[name], sort_keys=False))
        above = "--data data/result --tokenizer tokenizer/result"
        arguments = {
            "prepare": "--spec data.yaml --out data",
            "tokenizer": "--spec tokenizer.yaml --data data/result --out tokenizer",
            "sft": f"--spec backbone.yaml --evaluation evaluation.yaml {above} --seed 0 --out sft",
        }
        outs = {"prepare": "data", "tokenizer": "tokenizer", "sft": "sft"}
        stages = {
            name: {"cmd": f"python -P -m tasks.{name} {text}", "outs": [f"{outs[name]}/result"]}
            for name, text in arguments.items()
        }
        (root / "dvc.yaml").write_text(yaml.safe_dump({"stages": stages}))
        init = [sys.executable, "-m", "dvc", "init", "-q", "--no-scm"]
        subprocess.run(init, cwd=root, env=clean_environment(), check=True)
        with closing(ForkServer(root, logging.getLogger("flow"))) as server:
            server.begin(list(stages) if way == "forked" else [])
            for name in stages:
                assert run(root, name, server).outcome == "ran"
                assert not server._over
            found = [json.loads((root / out / "record" / "record.json").read_text()) for out in outs.values()]
        digests[way] = [record["result_digest"] for record in found]
        print(way, [(record["stage"], record["startup_seconds"], record["seconds"]) for record in found])
    assert digests["forked"] == digests["started"]
