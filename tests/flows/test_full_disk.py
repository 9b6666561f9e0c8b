"""A disk that is really full: a small tmpfs in a mount namespace of its own, which ends with its processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests import small_repository
from tests.small_repository import PROJECT, clean_environment, command

pytestmark = pytest.mark.platform
ALONE = ["unshare", "--map-root-user", "--mount"]


def on_a_small_disk(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """One of the functions below on a tmpfs of 16 MiB in `folder`."""
    mount = f'mount -t tmpfs -o size=16m tmpfs "$1" && exec "$2" -P -m tests.flows.test_full_disk {what} "$1"'
    words = [*ALONE, "sh", "-c", mount, "sh", str(folder), sys.executable]
    environment = clean_environment(PYTHONPATH=str(PROJECT))
    return subprocess.run(words, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=550)


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    if not shutil.which("unshare") or subprocess.run([*ALONE, "true"], capture_output=True).returncode:
        pytest.skip("no mount namespace here: `unshare --map-root-user --mount true` must work")
    return tmp_path


def fill(root: Path, left: int) -> Path:
    """Fills the disk but for some bytes; returns the file to remove."""
    path = root / "filler"
    path.write_bytes(b"x" * (shutil.disk_usage(root).free - left))
    return path


def stage(root: Path) -> None:
    """A stage that finds little room and then none, and once more when there is some: prints what came of it."""
    from flows.stage_run import Command, RunningStages, StageDone, StageFailed, run_stage
    from flows.working_tree import tidy
    from tasks.dvc.stage_results import StageResults
    from tests.chaos import processes_of

    small_repository.create(root, demo=("bandit",), seeds=(0,))
    stages = command("dvc", "stage", "list", "--name-only", root=root).stdout.split()
    before, address = (next(name for name in stages if name.startswith(kind)) for kind in ("prepare", "tokenizer"))

    def made(address: str, name: str) -> StageDone:
        with closing(StageResults(root, [address])) as results:
            command = Command(results.command(address), address, name, "", {})
            return run_stage(root, command, results, running=RunningStages(), log=print)

    made(before, "prepare")
    messages = []
    for left in (4 << 10, 0):
        filler = fill(root, left)
        try:
            made(address, "tokenizer")
        except StageFailed as error:
            messages.append(str(error))
        filler.unlink()
    alive = processes_of(root)
    tidy(root)
    done = made(address, "tokenizer")
    status = command("dvc", "status", before, address, root=root).stdout
    print(json.dumps({"messages": messages, "alive": alive, "then": done.outcome, "status": status}))


def up(root: Path) -> None:
    """`rewardsmith up` on a disk with little room, and on a full one: prints both endings and what was left."""
    endings = []
    for left in (4 << 20, 0):
        filler = fill(root, left)
        call = [sys.executable, "-P", "-m", "flows.servers", "up"]
        done = subprocess.run(call, cwd=root, capture_output=True, text=True)
        endings.append([done.returncode, done.stdout + done.stderr])
        filler.unlink()
    left_behind = sorted(path.name for path in root.rglob("*") if path.is_file())
    print(json.dumps({"endings": endings, "files": left_behind}))


def run(root: Path) -> None:
    """`rewardsmith run` and `doctor` on a disk with little room, and on a read-only one: prints the endings."""
    small_repository.create(root, demo=("bandit",), seeds=(0,))
    endings = []
    for spoil in (lambda: fill(root, 1 << 20), lambda: command("mount", "-o", "remount,ro", str(root), root=root)):
        spoil()
        for words in (("run",), ("doctor",)):
            call = [sys.executable, "-P", "-m", "tasks.command_line", *words]
            done = subprocess.run(call, cwd=root, capture_output=True, text=True)
            endings.append([done.returncode, done.stdout + done.stderr])
    print(json.dumps(endings))


def test_a_run_on_a_full_or_read_only_disk_is_refused_before_any_server_starts(disk: Path) -> None:
    done = on_a_small_disk(disk, "run")
    assert done.returncode == 0, done.stdout + done.stderr
    full, doctor_full, read_only, doctor_read_only = json.loads(done.stdout.splitlines()[-1])
    assert full[0] == read_only[0] == 2
    assert "error: the disk is full: " in full[1]
    assert "its file system is read-only" in read_only[1]
    for code, text in (doctor_full, doctor_read_only):
        assert code == 1
        assert "Traceback" not in text
    assert "read-only" in doctor_read_only[1]


def test_a_stage_on_a_full_disk_says_so_and_runs_when_there_is_room(disk: Path) -> None:
    done = on_a_small_disk(disk, "stage")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told["messages"]) == 2
    for message in told["messages"]:
        assert "the disk is full: " in message
        assert "Free some space and run the same command again" in message
    assert told["alive"] == []
    assert told["then"] == "ran"
    assert "up to date" in told["status"]


def test_up_on_a_full_disk_says_so_and_leaves_nothing_broken(disk: Path) -> None:
    done = on_a_small_disk(disk, "up")
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    for code, text in told["endings"]:
        assert code == 2
        assert "error: the disk is full: " in text
        assert "Traceback" not in text
    assert set(told["files"]) <= {"credentials.json", "lock"}


if __name__ == "__main__":
    {"stage": stage, "up": up, "run": run}[sys.argv[1]](Path(sys.argv[2]))
