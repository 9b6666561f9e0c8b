"""The package as it is installed: it works outside a clone, and a user's own folder `tasks` does not shadow it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_repository import PROJECT, clean_environment, write_yaml

pytestmark = pytest.mark.platform
#: Folders of params/ that a small study reads; its reward models come by themselves.
SETTINGS = ("params/segment", "params/scales/testbed")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, made from the files that git would give a user."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("library")
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    ).stdout.split("\n")  # fmt: skip
    for name in filter(None, listed):
        if (PROJECT / name).is_file() and not name.startswith(("results/", "tests/")):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, source / name)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*install, str(target), str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def project(library: Path, tmp_path: Path) -> Path:
    """A user's project with settings, code of its own and a package `tasks` that has nothing to do with this one."""
    for folder in SETTINGS:
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    suite = {"seeds": [0], "scale_seeds": {"default": [0]}}
    write_yaml(tmp_path / "params.yaml", {"demo": {"segment": {"seeds": [0], "rows": ["bandit"]}}, "suite": suite})
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise ImportError('this is my package of chores')\n")
    for words in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        command(tmp_path, library, *words)
    return tmp_path


def command(project: Path, library: Path, *words: str) -> str:
    """Returns what a program of the installed package prints in a user's project."""
    environment = clean_environment(PYTHONPATH=str(library), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1")
    done = subprocess.run(words, cwd=project, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rewardsmith(project: Path, library: Path, *arguments: str) -> str:
    return command(project, library, sys.executable, str(library / "bin" / "rewardsmith"), *arguments)


def test_every_file_of_the_packages_is_installed(library: Path) -> None:
    for package in ("rlhf_core", "tasks", "flows"):
        ours = {path.relative_to(PROJECT) for path in (PROJECT / package).rglob("*") if path.is_file()}
        ours = {path for path in ours if "__pycache__" not in path.parts}
        assert {path for path in ours if not (library / path).is_file()} == set()


def test_a_plan_and_a_stage_run_outside_a_clone_beside_a_users_own_tasks(project: Path, library: Path) -> None:
    assert "policy" in rewardsmith(project, library, "plan", "segment", "bandit")
    pipeline = (project / "dvc.yaml").read_text()
    assert "python -P -m tasks.prepare" in pipeline
    stages = command(project, library, sys.executable, "-m", "dvc", "stage", "list", "--name-only").split()
    [prepare] = [stage for stage in stages if stage.startswith("prepare")]
    command(project, library, sys.executable, "-m", "dvc", "repro", "-q", prepare)
    made = list((project / "results").glob("testbed/shared/data/*/result/data.json"))
    assert len(made) == 1
    assert "1 up to date" in rewardsmith(project, library, "plan", "segment", "bandit")


def test_code_of_the_users_own_is_found_from_the_installed_package(project: Path, library: Path) -> None:
    (project / "own_rewards.py").write_text("def brevity(batch):\n    return batch\n")
    ask = "from rlhf_core.user_code import import_callable as f; print(f('own_rewards:brevity', 'reward').__module__)"
    assert command(project, library, sys.executable, "-P", "-c", ask).strip() == "own_rewards"
