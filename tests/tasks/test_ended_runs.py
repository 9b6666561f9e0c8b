"""A run asked for again: when it has nothing to do, and what makes it look again."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tasks.dvc import ended_runs as up_to_date
from tasks.dvc.ended_runs import mark_request_done, note_of, nothing_to_do
from tasks.dvc.pipelines import Request

ASKED = Request("segment", "testbed", True, ("bandit",), (0,), report=True, sync=True)


FILES = ["dvc.yaml", "pipelines/testbed/segment/dvc.yaml"]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree whose run ended well; DVC finds two stages current."""
    for name in ("dvc.lock", "pipelines/testbed/segment/dvc.lock", "report/index.html"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "mlflow.db").touch()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(up_to_date, "PROJECT", tmp_path)
    found = {name: SimpleNamespace(address=name, state="current", out=f"results/{name}") for name in "ab"}
    monkeypatch.setattr(up_to_date.stale, "requested_stages", lambda *_, **__: found)
    mark_request_done(tmp_path, ASKED, FILES, time.time())
    return tmp_path


def test_what_ended_well_has_nothing_to_do(tree: Path) -> None:
    assert nothing_to_do(tree, ASKED) == "2 current"


def test_it_repeats_the_alarms(tree: Path) -> None:
    (tree / "results/b/result").mkdir(parents=True)
    alarm = {"step": 8, "kind": "fall", "since": 4, "message": "the proxy rose while the win rate fell"}
    (tree / "results/b/result/alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    first, second = str(nothing_to_do(tree, ASKED)).splitlines()
    assert first == "2 current, 1 with an alarm"
    assert second == "ALARM b: fall at step 8; the proxy rose while the win rate fell"


def touch(file: Path) -> None:
    """Writes a file, later than the run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    os.utime(file, (time.time() + 9, time.time() + 9))


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: touch(tree / "pipelines/testbed/segment/dvc.lock"),
        lambda tree: (tree / "dvc.lock").unlink(),
        lambda tree: (tree / "report/index.html").unlink(),
        lambda tree: touch(tree / "report/index.html"),
        lambda tree: touch(tree / "params/segment/rows.yaml"),
        lambda tree: touch(tree / "tasks/report/page.py"),
        lambda tree: (tree / "mlflow.db").unlink(),
        lambda tree: shutil.rmtree(tree / ".work"),
        lambda tree: note_of(tree, ASKED).write_text('{"files": ['),
    ],
    ids=["lock", "no lock", "no report", "report", "page", "code", "no MLflow", "no note", "half a note"],
)
def test_what_changed_since_is_looked_at(tree: Path, change: Callable[[Path], object]) -> None:
    change(tree)
    assert nothing_to_do(tree, ASKED) is None


def test_another_mlflow_is_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tree / "tasks/__pycache__/page.pyc")
    assert nothing_to_do(tree, ASKED) == "2 current"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    assert nothing_to_do(tree, ASKED) is None


def test_a_stale_stage_is_looked_at(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up_to_date.stale, "requested_stages", lambda *_, **__: {"a": SimpleNamespace(state="restore")})
    assert nothing_to_do(tree, ASKED) is None
