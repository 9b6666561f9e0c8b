"""One stage by DVC: how it ended, and what comes from a damaged cache."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from dvc.cli import main as dvc

from tasks.dvc.one_stage import OUTCOME_VARIABLE, RAN, RESTORED, UNCHANGED, main, reproduce
from tests.small_repository import PROJECT

#: A stage with a result and a record of its digest, as the project's stages write them.
STAGE = """
import sys
from pathlib import Path
from tasks.running.artifacts import digest, write_json
out = Path("results/x")
(out / "result").mkdir(parents=True)
(out / "record").mkdir()
(out / "result" / "model.txt").write_text(Path("in.txt").read_text() * 3)
(out / "result" / "metrics.json").write_text("{}")
write_json(out / "record" / "record.json", {"result_digest": digest(out / "result")})
with open("calls", "a") as calls:
    calls.write("x")
sys.exit(int(Path("in.txt").read_text() == "bad"))
"""
PIPELINE = """
stages:
  make:
    cmd: {python} stage.py
    deps: [in.txt]
    outs: [results/x/result, results/x/record]
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    (root / "stage.py").write_text(STAGE)
    (root / "dvc.yaml").write_text(PIPELINE.format(python=sys.executable))
    (root / "in.txt").write_text("good")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        patch.setenv("DVC_NO_ANALYTICS", "true")
        patch.setenv("PYTHONPATH", str(PROJECT))
        assert dvc(["init", "-q", "--no-scm"]) == 0
        assert reproduce(root, "make") == RAN
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    return tmp_path


def model(root: Path) -> Path:
    return root / "results" / "x" / "result" / "model.txt"


def damage(root: Path, content: str, other: str) -> None:
    """Changes the file of the cache that holds a content; DVC trusts it, since it stays read-only."""
    files = (path for path in (root / ".dvc" / "cache" / "files").rglob("*") if path.is_file())
    file = next(path for path in files if path.read_text() == content)
    file.chmod(0o644)
    file.write_text(other)
    file.chmod(0o444)


def calls(root: Path) -> int:
    return len((root / "calls").read_text())


def test_it_says_how_a_stage_ended(root: Path) -> None:
    assert reproduce(root, "make") == UNCHANGED
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED
    assert model(root).read_text() == "good" * 3
    (root / "in.txt").write_text("more")
    assert reproduce(root, "make") == RAN
    (root / "in.txt").write_text("good")
    assert reproduce(root, "make") == RESTORED
    assert calls(root) == 2


def test_without_the_run_cache_a_result_comes_by_the_lock_file(root: Path) -> None:
    shutil.rmtree(root / ".dvc" / "cache" / "runs")
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED
    assert calls(root) == 1


@pytest.mark.parametrize(
    ("content", "other"), [("good" * 3, "goodgoodgold"), ("{}", "{"), ('{\n "result_digest"', "{}")], ids=str
)
def test_a_damaged_copy_is_dropped_from_the_cache_and_the_stage_runs(
    root: Path, content: str, other: str, capfd: pytest.CaptureFixture[str]
) -> None:
    record = root / "results" / "x" / "record" / "record.json"
    damage(root, record.read_text() if "digest" in content else content, other)
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RAN
    assert "in DVC's cache is damaged and was removed; the stage runs" in capfd.readouterr().out
    assert calls(root) == 2
    assert model(root).read_text() == "good" * 3
    assert json.loads(record.read_text())["result_digest"]
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED, "the cache is whole again"
    assert model(root).read_text() == "good" * 3


def test_a_record_of_another_result_is_not_believed(root: Path) -> None:
    """DVC's own digests are right here: only the record tells that the result is another one."""
    record = root / "results" / "x" / "record" / "record.json"
    record.chmod(0o644)
    record.write_text(json.dumps({"result_digest": "0" * 64}))
    assert dvc(["commit", "-q", "--force"]) == 0
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RAN
    assert json.loads(record.read_text())["result_digest"] != "0" * 64


def test_the_command_line_writes_the_outcome_and_ends_as_the_stage_did(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OUTCOME_VARIABLE, "outcome")
    assert main(["make"]) == 0
    assert (root / "outcome").read_text() == UNCHANGED
    (root / "in.txt").write_text("bad")
    monkeypatch.setenv(OUTCOME_VARIABLE, "other")
    call = [sys.executable, "-P", "-m", "tasks.dvc.one_stage", "make"]
    done = subprocess.run(call, cwd=root, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "failed to reproduce 'make': failed to run" in done.stderr
    assert not (root / "other").exists()
    assert main(["mkae"]) == 255
