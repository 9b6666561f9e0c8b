"""A run asked for again: when it has nothing to do, and what makes it look again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.dvc import ended_runs as up_to_date
from tasks.dvc.ended_runs import RunRequest, mark_request_done, nothing_to_do

ASKED = RunRequest("segment", "testbed", True, ("bandit",), (0,), report=True, sync=True)


FILES = ["dvc.yaml", "pipelines/testbed/segment/dvc.yaml"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose run ended well; DVC finds two stages current."""
    for name in ("dvc.lock", "pipelines/testbed/segment/dvc.lock", "report/index.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "mlflow.db").touch()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(up_to_date, "code_of", lambda root: "abc")
    found = {name: SimpleNamespace(address=name, state="current", out=f"results/{name}") for name in "ab"}
    monkeypatch.setattr(up_to_date.stale, "requested_stages", lambda *_, **__: found)
    mark_request_done(tmp_path, ASKED, FILES, "abc")
    return tmp_path


def test_what_ended_well_has_nothing_to_do(tree: Path) -> None:
    assert nothing_to_do(tree, ASKED) == "2 current"


def test_it_says_how_many_results_are_a_stop(tree: Path) -> None:
    (tree / "results/b/result").mkdir(parents=True)
    (tree / "results/b/result/stopped.json").write_text('{"reason": "too few are right", "metrics": {}}')
    assert nothing_to_do(tree, ASKED) == "2 current, 1 of them stopped"


def test_it_repeats_the_alarms(tree: Path) -> None:
    (tree / "results/b/result").mkdir(parents=True)
    alarm = {"step": 8, "kind": "fall", "since": 4, "message": "the proxy rose while the win rate fell"}
    (tree / "results/b/result/alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    first, second = str(nothing_to_do(tree, ASKED)).splitlines()
    assert first == "2 current, 1 with an alarm"
    assert second == "ALARM b: fall at step 8; the proxy rose while the win rate fell"


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: (tree / "pipelines/testbed/segment/dvc.lock").write_text("another result"),
        lambda tree: (tree / "dvc.lock").unlink(),
        lambda tree: (tree / "report/index.html").unlink(),
        lambda tree: (tree / "report/index.html").write_text("of another scale"),
        lambda tree: (tree / "mlflow.db").unlink(),
        lambda tree: shutil.rmtree(tree / ".work"),
        lambda tree: ASKED.note(tree).write_text('{"files": ['),
    ],
    ids=["a lock", "no lock", "no report", "another report", "no MLflow", "no note", "half a note"],
)
def test_what_changed_since_is_looked_at(tree: Path, change: Callable[[Path], object]) -> None:
    change(tree)
    assert nothing_to_do(tree, ASKED) is None


def test_other_code_and_another_mlflow_are_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as other:
        other.setattr(up_to_date, "code_of", lambda root: "def")
        assert nothing_to_do(tree, ASKED) is None
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
        assert nothing_to_do(tree, ASKED) is None
    assert nothing_to_do(tree, ASKED) == "2 current"


def test_another_question_is_looked_at(tree: Path) -> None:
    assert nothing_to_do(tree, replace(ASKED, seeds=(1,))) is None


def test_a_stale_stage_is_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_to_date.stale, "requested_stages", lambda *_, **__: {"a": SimpleNamespace(state="restore")})
    assert nothing_to_do(tree, ASKED) is None


def test_code_that_nobody_knows_leaves_no_note(tree: Path) -> None:
    asked = replace(ASKED, seeds=(1,))
    mark_request_done(tree, asked, FILES, "")
    assert not asked.note(tree).exists()
