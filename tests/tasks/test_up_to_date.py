"""A run asked for again: when it has nothing to do, and what makes it look again."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks import up_to_date
from tasks.up_to_date import Asked, ended_well, nothing_to_do

ASKED = Asked("segment", "testbed", True, ("bandit",), (0,), report=True, sync=True)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose run ended well; DVC finds two stages current."""
    for name in ("dvc.lock", "pipelines/testbed/segment/dvc.lock", "report/index.html", "mlflow.db"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(up_to_date, "commit_of", lambda root: "abc")
    monkeypatch.setattr(up_to_date, "changed_since", lambda root, commit: [])
    found = {name: SimpleNamespace(state="current") for name in "ab"}
    monkeypatch.setattr(up_to_date.plan, "asked_for", lambda *_, **__: found)
    ended_well(tmp_path, ASKED, ["dvc.yaml", "pipelines/testbed/segment/dvc.yaml"])
    return tmp_path


def test_what_ended_well_has_nothing_to_do(tree: Path) -> None:
    assert nothing_to_do(tree, ASKED) == 2


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "pipelines/testbed/segment/dvc.lock").write_text("another result"),
        lambda tree: (tree / "dvc.lock").unlink(),
        lambda tree: (tree / "report/index.html").unlink(),
        lambda tree: (tree / "mlflow.db").unlink(),
        lambda tree: shutil.rmtree(tree / ".work"),
        lambda tree: ASKED.note(tree).write_text('{"files": ['),
    ],
    ids=["a lock", "no lock", "no report", "no runs", "no note", "half a note"],
)
def test_what_changed_since_is_looked_at(tree: Path, change: Callable[[Path], object]) -> None:
    change(tree)
    assert nothing_to_do(tree, ASKED) is None


def test_other_code_and_another_mlflow_are_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(up_to_date, "commit_of", lambda root: "def")
        assert nothing_to_do(tree, ASKED) is None
    with monkeypatch.context() as edited:
        edited.setattr(up_to_date, "changed_since", lambda root, commit: ["tasks/up_to_date.py"])
        assert nothing_to_do(tree, ASKED) is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
        assert nothing_to_do(tree, ASKED) is None
    assert nothing_to_do(tree, ASKED) == 2


def test_another_question_is_looked_at(tree: Path) -> None:
    assert nothing_to_do(tree, Asked("segment", "testbed", True, ("bandit",), (1,), report=True, sync=True)) is None


def test_a_stale_stage_is_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_to_date.plan, "asked_for", lambda *_, **__: {"a": SimpleNamespace(state="restore")})
    assert nothing_to_do(tree, ASKED) is None


def test_code_outside_git_is_never_known(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_to_date, "commit_of", lambda root: "")
    ended_well(tree, ASKED, ["dvc.yaml"])
    assert nothing_to_do(tree, ASKED) is None
