"""Leftovers of killed processes, and two schedulers at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from flows import working_tree
from rlhf_core.errors import RewardsmithError
from tasks.running.locks import only_scheduler
from tasks.running.platform_state import lives
from tests.chaos import wait_for
from tests.small_repository import PROJECT


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def write_rwlock(root: Path, content: object) -> Path:
    path = root / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_lock_of_a_killed_scheduler_does_not_block(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from tasks.running.locks import only_scheduler\n"
        "with only_scheduler(Path(sys.argv[1])):\n    print('held', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    with pytest.raises(RewardsmithError), only_scheduler(tmp_path):
        pass
    process.kill()
    process.wait()
    with only_scheduler(tmp_path):
        pass


def test_a_rwlock_of_dead_and_foreign_processes_goes(tmp_path: Path) -> None:
    gone = {"pid": dead_pid(), "cmd": "dvc repro"}
    reused = {"pid": 1, "cmd": "dvc repro"}
    path = write_rwlock(tmp_path, {"write": {"a": gone}, "read": {"b": [gone, reused], "c": [gone]}})
    assert working_tree.clear_dead_locks(tmp_path)
    assert not path.exists()


def test_rwlock_entries_of_living_dvc_stay(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", "dvc"])
    try:
        wait_for(lambda: "dvc" in psutil.Process(process.pid).cmdline(), 30)
        content = {"write": {"a": {"pid": process.pid, "cmd": "dvc repro"}}, "read": {}}
        path = write_rwlock(tmp_path, content)
        assert not working_tree.clear_dead_locks(tmp_path)
        assert json.loads(path.read_text()) == content
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_unreadable_rwlock_is_removed(tmp_path: Path, content: str) -> None:
    path = write_rwlock(tmp_path, content)
    assert working_tree.clear_dead_locks(tmp_path)
    assert not path.exists()


LOCK = "schema: '2.0'\nstages:\n  a:\n    cmd: x\n    outs:\n    - path: b\n      hash: md5\n      md5: abcd\n"


@pytest.mark.parametrize(
    "content",
    [
        *("", "stages: {a: [", "just text", "stages: {a: {deps: []}}", *(LOCK[:end] for end in (6, 22, 35, 60))),
        *(LOCK + LOCK.partition("stages:")[2], "[" * 100_000, "- " * 100_000, LOCK + "\0"),
    ],
    ids=lambda content: content[:40],
)
def test_unreadable_dvc_lock_is_set_aside(tmp_path: Path, content: str) -> None:
    folder = tmp_path / "pipelines" / "testbed" / "segment"
    folder.mkdir(parents=True)
    (folder / "dvc.lock").write_text(content)
    (tmp_path / "dvc.lock").write_text(LOCK)
    assert working_tree.set_aside_unreadable_locks(tmp_path) == [Path("pipelines/testbed/segment/dvc.lock")]
    assert (tmp_path / "dvc.lock").exists()
    kept = list((tmp_path / ".work" / "set-aside").iterdir())
    assert [file.read_text() for file in kept] == [content]


#: A run that starts a stage, which starts a child in a group of its own; it says their ids.
RUN = """
import os, subprocess, sys, time
from pathlib import Path
from flows.working_tree import mark

sleep = "import time; time.sleep(60)"
stage = "import subprocess, sys, time; call = [sys.executable, '-c', sys.argv[1]]; "
stage += "print(subprocess.Popen(call, start_new_session=True).pid, flush=True); time.sleep(60)"
environment = {**os.environ, **mark(Path(sys.argv[1]))}
child = subprocess.Popen([sys.executable, "-c", stage, sleep], env=environment, start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_killed_run_alone_loses_its_stage_to_the_tree_around_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    tree = tmp_path / ".work" / "studies" / "own"
    call = [sys.executable, "-c", RUN, str(tree)]
    run = subprocess.Popen(call, env=environment, stdout=subprocess.PIPE, text=True)
    assert run.stdout is not None
    children = [psutil.Process(int(run.stdout.readline())) for _ in range(2)]
    try:
        assert working_tree.end_orphans(tmp_path) == []
        assert {process.pid for process, _ in working_tree.started_processes(tmp_path)} == {c.pid for c in children}
        run.kill()
        run.wait()
        assert working_tree.end_orphans(tmp_path / "other") == []
        assert all(map(lives, children))
        assert working_tree.end_orphans(tmp_path) == ["ended 2 process(es) of killed runs"]
        assert not any(map(lives, children))
    finally:
        for one in (run, *children):
            with suppress(psutil.NoSuchProcess):
                one.kill()
        run.stdout.close()
