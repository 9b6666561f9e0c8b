"""A stage's result in DVC: taken from its cache, whole or damaged, or committed after the stage ran."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from dvc.cli import main as dvc

from rlhf_core.errors import RewardsmithError
from tasks.dvc.stage_results import RAN, RESTORED, UNCHANGED, StageResults
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
record = {"result_digest": digest(out / "result"), "out": out.as_posix(), "inputs": {"in.txt": digest("in.txt")}}
write_json(out / "record" / "record.json", record)
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


def run(root: Path, results: StageResults) -> None:
    subprocess.run(results.command("make"), shell=True, check=True, cwd=root)


def reproduce(root: Path, address: str) -> str:
    with closing(StageResults(root, [address])) as results, results.result(address) as outcome:
        if outcome == RAN:
            subprocess.run(results.command(address), shell=True, check=True, cwd=root)
    return outcome


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
    assert "is damaged and was removed; the stage runs" in capfd.readouterr().out
    assert calls(root) == 2
    assert model(root).read_text() == "good" * 3
    assert json.loads(record.read_text())["result_digest"]
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED, "the cache is whole again"
    assert model(root).read_text() == "good" * 3


@pytest.mark.parametrize("names", ["model.txt", "record.json"])
def test_a_damaged_list_of_a_folder_s_files_is_dropped_and_the_stage_runs(root: Path, names: str) -> None:
    lists = [path.read_text() for path in (root / ".dvc" / "cache" / "files").rglob("*.dir")]
    [whole] = [text for text in lists if names in text]
    other = [{**entry, "relpath": "../elsewhere"} for entry in json.loads(whole)[:1]]
    damage(root, whole, json.dumps(other))
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RAN
    assert model(root).read_text() == "good" * 3
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED
    assert model(root).read_text() == "good" * 3


def test_dvc_and_a_run_find_each_other_s_results(root: Path) -> None:
    assert "up to date" in status(root)
    (root / "in.txt").write_text("more")
    assert dvc(["repro", "-q"]) == 0
    assert reproduce(root, "make") == UNCHANGED
    (root / "in.txt").write_text("less")
    assert reproduce(root, "make") == RAN
    assert "up to date" in status(root)
    shutil.rmtree(root / "results")
    assert dvc(["repro", "-q"]) == 0
    assert calls(root) == 3


def status(root: Path) -> str:
    return subprocess.run([sys.executable, "-m", "dvc", "status"], cwd=root, capture_output=True, text=True).stdout


def test_an_input_that_changed_while_the_stage_ran_is_not_committed(root: Path) -> None:
    lock = (root / "dvc.lock").read_text()
    (root / "in.txt").write_text("more")
    message = r"in\.txt changed while stage make ran.*not committed"
    with closing(StageResults(root, ["make"])) as results:
        running = results.result("make")
        assert running.__enter__() == RAN
        run(root, results)
        (root / "in.txt").write_text("other")
        with pytest.raises(RewardsmithError, match=message):
            running.__exit__(None, None, None)
    assert (root / "dvc.lock").read_text() == lock
    assert reproduce(root, "make") == RAN


def test_dvc_leaves_a_running_stage_alone(root: Path) -> None:
    (root / "in.txt").write_text("more")
    with closing(StageResults(root, ["make"])) as results, results.result("make"):
        other = subprocess.run([sys.executable, "-m", "dvc", "repro"], cwd=root, capture_output=True, text=True)
        assert "is busy, it is being blocked by" in other.stderr
        run(root, results)
    assert calls(root) == 2
    assert dvc(["repro", "-q"]) == 0
    assert calls(root) == 2
