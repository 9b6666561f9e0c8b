"""Differences of a tree from a commit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks.running.commit import changed_since, commit_of
from tests.small_repository import begin_repository, command


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("tasks/sft.py", "params/segment/rows.yaml", ".gitignore"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("__pycache__/\n" if name == ".gitignore" else "1\n")
    begin_repository(tmp_path)
    command("git", "add", "-A", root=tmp_path)
    command("git", "commit", "-qm", "start", root=tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["tasks/new.py", "params/segment/rows new.yaml", "params/mine/rows.yaml"])
def test_a_new_file_of_code_or_parameters_is_a_difference(root: Path, name: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("1\n")
    assert changed_since(root, commit_of(root)) == [name]


def test_changed_and_removed_files_are_differences(root: Path) -> None:
    (root / "tasks/sft.py").write_text("2\n")
    (root / "params/segment/rows.yaml").unlink()
    assert changed_since(root, commit_of(root)) == ["params/segment/rows.yaml", "tasks/sft.py"]


def test_what_runs_write_and_what_git_ignores_is_none(root: Path) -> None:
    for name in ("pipelines/testbed/segment/dvc.yaml", "dvc.lock", "results/x", "tasks/__pycache__/sft.pyc", "notes"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    assert changed_since(root, commit_of(root)) == []
