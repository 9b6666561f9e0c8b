"""The parts of DVC without a public interface: each test names what breaks when DVC changes its part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc import dvcfile
from dvc.cli import main as dvc
from dvc.lock import LockError
from dvc.repo import Repo
from dvc.utils.serialize import _yaml

from tasks.dvc.internals import (
    open_repo,
    run_folder,
    run_key,
    run_value,
    save_run,
)

PIPELINE = """
stages:
  make:
    cmd: cp in.txt out.txt && {command}
    deps: [in.txt]
    outs: [out.txt]
"""
HOLD = "import sys, time; from dvc.repo import Repo\nwith Repo('.').lock: print('held', flush=True); time.sleep(6)"


def repository(root: Path, command: str = "true") -> Path:
    (root / "dvc.yaml").write_text(PIPELINE.format(command=command))
    (root / "in.txt").write_text("hello\n")
    return root


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = repository(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("DVC_NO_ANALYTICS", "true")
        assert dvc(["init", "-q", "--no-scm"]) == 0
        assert dvc(["repro", "-q"]) == 0
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entry(root: Path) -> dict[str, object]:
    found: dict[str, object] = yaml.safe_load((root / "dvc.lock").read_text())["stages"]["make"]
    return found


def test_a_repository_waits_for_the_lock_of_another_process(root: Path) -> None:
    """Breaks: stages that start side by side fail with 'Unable to acquire lock'."""
    holder = subprocess.Popen([sys.executable, "-c", HOLD], cwd=root, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(LockError), Repo(str(root)) as repo, repo.lock:  # after three seconds
        pass
    with open_repo(root) as repo, repo.lock:
        assert holder.wait(timeout=60) == 0, "it waited until the other process let go"


def test_the_key_and_name_of_a_run_are_those_of_dvcs_run_cache(root: Path) -> None:
    """Breaks: nothing is restored in plans, and several machines do not know each other's results."""
    file = root / ".dvc" / "cache" / run_folder(run_key(entry(root))) / run_value(entry(root))
    assert file.is_file()
    assert run_key({**entry(root), "cmd": "other"}) != run_key(entry(root))


def test_a_run_is_saved_as_dvc_saves_it(root: Path) -> None:
    """Breaks: a result that was deleted is not restored by `dvc repro`."""
    runs = root / ".dvc" / "cache" / "runs"
    before = {path.relative_to(runs): path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    shutil.rmtree(runs)
    with open_repo(root) as repo:
        (stage,) = repo.stage.collect("make")
        save_run(repo, stage)
    assert {path.relative_to(runs): path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before


def test_a_lock_file_is_rewritten_as_dvc_rewrites_it(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, order and bytes are those of DVC's own parser for files that it rewrites."""
    params = {"rate": 1e-3, "tiny": 2.5e-07, "text": "it's: 'x' # no comment", "on": True, "none": None, "words": []}
    lock = yaml.safe_load(Path("dvc.lock").read_text())
    lock["stages"]["other"] = {
        "cmd": "python -m tasks.policy " + "--one-of-many-options with-its-value " * 6,
        "params": {"params.yaml": {"b": params, "a": {"deep": [1, {"two": "3"}], "null": "null"}}},
    }
    with open_repo(root) as repo, open("dvc.lock", "w", encoding="utf-8") as file:
        _yaml._dump(lock, file)
        (stage,) = repo.stage.collect("make")
        stage.cmd = "cp in.txt out.txt && true #"
        before = Path("dvc.lock").read_text()
        stage.dump()
        quick = Path("dvc.lock").read_text()
        Path("dvc.lock").write_text(before)
        monkeypatch.setattr(dvcfile, "modify_yaml", _yaml.modify_yaml)
        stage.dump()
    assert quick == Path("dvc.lock").read_text() != before
