"""One stage by DVC: how it ended, and what comes from a damaged cache."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from dvc.cli import main as dvc
from dvc.repo import Repo

from tasks.dvc.internals import run_value
from tasks.dvc.one_stage import OUTCOME_VARIABLE, RAN, RESTORED, UNCHANGED, main, reproduce
from tasks.dvc.stale import Look
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


@pytest.mark.parametrize("names", ["model.txt", "record.json"])
@pytest.mark.parametrize("kept", [0, 1])
def test_a_damaged_list_of_a_folder_s_files_is_dropped_and_the_stage_runs(root: Path, names: str, kept: int) -> None:
    lists = [path.read_text() for path in (root / ".dvc" / "cache" / "files").rglob("*.dir")]
    [whole] = [text for text in lists if names in text]
    other = [{**entry, "relpath": "../elsewhere"} for entry in json.loads(whole)[:kept]]
    damage(root, whole, json.dumps(other))
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RAN
    assert model(root).read_text() == "good" * 3
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED
    assert model(root).read_text() == "good" * 3
    assert not list(root.rglob("elsewhere"))


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


def list_of_result(root: Path) -> Path:
    lists = (root / ".dvc" / "cache" / "files").rglob("*.dir")
    return next(path for path in lists if "model.txt" in path.read_text())


HOSTILE_LISTS = {
    "nested": "[" * 100_000 + "]" * 100_000,
    "a number of 10,000 digits": "[" + "9" * 10_000 + "]",
    "not a list": '{"md5": 1}',
    "texts": '["model.txt"]',
    "no path": '[{"md5": "%s"}]',
    "a path twice": '[{"md5": "%s", "relpath": "a"}, {"md5": "%s", "relpath": "a"}]',
    "a file as a folder": '[{"md5": "%s", "relpath": "a"}, {"md5": "%s", "relpath": "a/b"}]',
    "above": '[{"md5": "%s", "relpath": "../../elsewhere"}]',
    "absolute": '[{"md5": "%s", "relpath": "/elsewhere"}]',
    "no digest": '[{"md5": "../../../in.txt", "relpath": "a"}]',
}


@pytest.mark.parametrize("valid_digest", [True, False], ids=["named in the lock", "damaged"])
@pytest.mark.parametrize("text", HOSTILE_LISTS.values(), ids=HOSTILE_LISTS)
def test_a_hostile_list_of_files_is_dropped_and_the_stage_runs(
    root: Path, text: str, valid_digest: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    place = list_of_result(root)
    copies = {path.read_text(): path for path in place.parents[1].rglob("*") if path.is_file()}
    content = copies["good" * 3]
    text = text.replace("%s", content.parent.name + content.name)
    lock = (root / "dvc.lock").read_text()
    place.chmod(0o644)
    if valid_digest:
        name = hashlib.md5(text.encode()).hexdigest()
        (root / "dvc.lock").write_text(lock.replace(place.parent.name + place.name, f"{name}.dir"))
        place = place.parents[1] / name[:2] / f"{name[2:]}.dir"
        place.parent.mkdir(exist_ok=True)
        shutil.rmtree(root / ".dvc" / "cache" / "runs")
    place.write_text(text)
    place.chmod(0o444)
    shutil.rmtree(root / "results")
    look = Repo(str(root))
    with look.lock:
        [stage] = look.stage.collect("make")
        assert Look(look).state(stage, [])[0] == "run", "a plan says so, too"
    look.close()
    assert reproduce(root, "make") == RAN
    assert "a damaged list of files of make was removed from DVC's cache" in capfd.readouterr().out
    assert model(root).read_text() == "good" * 3
    assert not [path for path in (*root.rglob("elsewhere"), Path("/elsewhere")) if path.exists()]


def runs(root: Path) -> list[Path]:
    return sorted(path for path in (root / ".dvc" / "cache" / "runs").rglob("*") if path.is_file())


def two_runs(root: Path) -> tuple[Path, Path]:
    """The run-cache entries of the stage with the inputs 'more' and 'good', and no results in the tree."""
    good = runs(root)
    (root / "in.txt").write_text("more")
    assert reproduce(root, "make") == RAN
    [more] = {*runs(root)} - {*good}
    shutil.rmtree(root / "results")
    return more, good[0]


def test_swapped_entries_of_the_run_cache_are_not_believed(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more, good = two_runs(root)
    texts = more.read_text(), good.read_text()
    more.write_text(texts[1])
    good.write_text(texts[0])
    (root / "dvc.lock").unlink()
    (root / "in.txt").write_text("good")
    assert reproduce(root, "make") == RAN
    assert "in DVC's run cache is not a run of make; removed" in capfd.readouterr().out
    assert model(root).read_text() == "good" * 3


@pytest.mark.parametrize("where", ["lock", "run cache"])
def test_outputs_of_other_inputs_are_not_believed(root: Path, where: str, capfd: pytest.CaptureFixture[str]) -> None:
    """Each digest belongs to a whole object of the cache; only the record tells that another run made it."""
    more, good = two_runs(root)
    own, other = (yaml.safe_load(path.read_text()) for path in (good, more))
    entry = {**own, "outs": other["outs"]}
    (root / "in.txt").write_text("good")
    if where == "lock":
        shutil.rmtree(root / ".dvc" / "cache" / "runs")
        (root / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"make": entry}}))
    else:
        (root / "dvc.lock").unlink()
        good.unlink()
        (good.parent / run_value(entry)).write_text(yaml.safe_dump(entry))
    assert reproduce(root, "make") == RAN
    assert "is of another stage or of other inputs; the stage runs" in capfd.readouterr().out
    assert model(root).read_text() == "good" * 3
    shutil.rmtree(root / "results")
    assert reproduce(root, "make") == RESTORED
    assert model(root).read_text() == "good" * 3


@pytest.mark.parametrize("parts", [["result"], ["record"], ["result", "record"]], ids="+".join)
def test_outputs_of_another_stage_are_not_believed(root: Path, parts: list[str]) -> None:
    pipeline = yaml.safe_load((root / "dvc.yaml").read_text())
    make = pipeline["stages"]["make"]
    pipeline["stages"]["other"] = {**make, "cmd": f"{make['cmd']} y", "outs": ["results/y/result", "results/y/record"]}
    (root / "dvc.yaml").write_text(yaml.safe_dump(pipeline))
    (root / "stage.py").write_text(
        STAGE.replace('"results/x"', '"results/" + (sys.argv[1:] or ["x"])[0]').replace("* 3", "* len(sys.argv)")
    )
    assert reproduce(root, "other") == RAN
    whole = (root / "results" / "y" / "result" / "model.txt").read_text()
    lock = yaml.safe_load((root / "dvc.lock").read_text())
    made = {out["path"]: out for out in lock["stages"]["make"]["outs"]}
    for out in lock["stages"]["other"]["outs"]:
        if Path(out["path"]).name in parts:
            out["md5"] = made[out["path"].replace("/y/", "/x/")]["md5"]
    (root / "dvc.lock").write_text(yaml.safe_dump(lock))
    shutil.rmtree(root / ".dvc" / "cache" / "runs")
    shutil.rmtree(root / "results" / "y")
    assert reproduce(root, "other") == RAN
    assert (root / "results" / "y" / "result" / "model.txt").read_text() == whole
