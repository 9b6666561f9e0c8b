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


def test_new_changed_and_removed_files_of_code_and_parameters_are_differences(root: Path) -> None:
    (root / "tasks/sft.py").write_text("2\n")
    (root / "params/segment/rows.yaml").unlink()
    for name in ("tasks/new.py", "params/segment/rows new.yaml", "params/mine/rows.yaml"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    found = ["params/segment/rows.yaml", "tasks/sft.py"]
    found += ["params/mine/rows.yaml", "params/segment/rows new.yaml", "tasks/new.py"]
    assert changed_since(root, commit_of(root)) == found


def test_what_runs_write_and_what_git_ignores_is_none(root: Path) -> None:
    for name in ("pipelines/testbed/segment/dvc.yaml", "dvc.lock", "results/x", "tasks/__pycache__/sft.pyc", "notes"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("1\n")
    assert changed_since(root, commit_of(root)) == []
