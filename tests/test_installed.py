"""The package as it is installed: it works outside a clone, and a user's own folder `tasks` does not shadow it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.small_repository import PROJECT, command, write_yaml

pytestmark = pytest.mark.platform
PACKAGES = ("rlhf_core", "tasks", "flows")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package, made from the files that git would give a user."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("library")
    kinds = ("--cached", "--others", "--exclude-standard")
    listed = command("git", "ls-files", *kinds, *PACKAGES, "pyproject.toml", "README.md", "LICENSE", root=PROJECT)
    for name in listed.stdout.splitlines():
        if (PROJECT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, source / name)
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*install, str(target), str(source)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return target


def test_every_file_of_the_packages_is_installed(library: Path) -> None:
    ours = {path.relative_to(PROJECT) for package in PACKAGES for path in (PROJECT / package).rglob("*.*")}
    assert {path for path in ours if "__pycache__" not in path.parts and not (library / path).is_file()} == set()


def test_a_project_with_a_package_tasks_of_its_own_is_planned_and_run(library: Path, tmp_path: Path) -> None:
    for folder in ("params/segment", "params/scales/testbed"):
        shutil.copytree(PROJECT / folder, tmp_path / folder)
    suite = {"seeds": [0], "scale_seeds": {"default": [0]}}
    write_yaml(tmp_path / "params.yaml", {"demo": {"segment": {"seeds": [0], "rows": ["bandit"]}}, "suite": suite})
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "__init__.py").write_text("raise ImportError('this is my package of chores')\n")
    (tmp_path / "own_rewards.py").write_text("def brevity(batch):\n    return batch\n")

    def prints(*words: str) -> str:
        """Returns what Python with the installed package prints in the project."""
        return command(
            sys.executable, *words, root=tmp_path, PYTHONPATH=str(library), HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1"
        ).stdout

    command("git", "init", "-q", root=tmp_path)
    prints("-m", "dvc", "init", "-q")
    program = str(library / "bin" / "rewardsmith")
    assert "policy" in prints(program, "plan", "segment", "bandit")
    assert "python -P -m tasks.prepare" in (tmp_path / "dvc.yaml").read_text()
    stages = prints("-m", "dvc", "stage", "list", "--name-only").split()
    [prepare] = [stage for stage in stages if stage.startswith("prepare")]
    prints("-m", "dvc", "repro", "-q", prepare)
    assert len(list((tmp_path / "results").glob("testbed/shared/data/*/result/data.json"))) == 1
    assert "1 up to date" in prints(program, "plan", "segment", "bandit")
    ask = "from rlhf_core.user_code import import_callable as f; print(f('own_rewards:brevity', 'reward').__module__)"
    assert prints("-P", "-c", ask).strip() == "own_rewards"
