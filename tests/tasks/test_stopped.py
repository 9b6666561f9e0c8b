"""Stages that stop: the result says why, what reads from it stops as well, and tables and tracking say so."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.scheduler import RunSummary
from flows.stage_run import StageDone
from tasks import tables
from tasks.graph import dvc_files as graph
from tasks.graph.results import STOPPED_FILE, stopped
from tasks.report.paper_tables import print_table
from tasks.running.artifacts import Stopped, read_json, stage_output, write_json
from tasks.running.checkpoints import resumable_output
from tasks.running.stage import command_line
from tasks.tracking import outcomes
from tests import small_repository
from tests.tasks.report.fixture_results import make_results

VERSION = 3
REASON = "0.51 of the rewrites are right, below 0.6"


def stopping(out: Path, version: int | None = None) -> None:
    """Finds what forbids the rest."""
    with stage_output(out, stage="stopping", version=VERSION, inputs=[]) as result:
        (result / "weights").write_text("what nobody may read")
        raise Stopped(REASON, {"accuracy": 0.51})


def reading(samples: Path, token_rewards: tuple[Path, ...] | None, out: Path, version: int | None = None) -> None:
    """Reads from others."""
    with stage_output(out, stage="reading", version=VERSION, inputs=[samples]) as result:
        write_json(result / "metrics.json", {"read": 1.0})


def run(function: Callable[..., None], *arguments: object) -> None:
    command_line(function)([str(word) for word in arguments])


def test_a_stage_that_stops_leaves_its_reason_and_measures_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(stopping, "--out", tmp_path / "a")
    assert [path.name for path in (tmp_path / "a/result").iterdir()] == [STOPPED_FILE]
    assert read_json(tmp_path / "a/result" / STOPPED_FILE) == {"reason": REASON, "metrics": {"accuracy": 0.51}}
    assert read_json(tmp_path / "a/record/record.json")["version"] == VERSION
    assert stopped(tmp_path / "a/result") == REASON
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["record", "result"]
    assert capsys.readouterr().err == f"stopped: {REASON}\n"


def test_what_reads_from_it_stops_without_running(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(stopping, "--out", tmp_path / "a")
    (tmp_path / "samples").mkdir()
    run(reading, "--samples", tmp_path / "samples", "--out", tmp_path / "b")
    given = ("--samples", tmp_path / "b/result", "--token-rewards", tmp_path / "b/result", tmp_path / "a/result")
    run(reading, *given, "--out", tmp_path / "c", "--stage-version", VERSION)
    assert stopped(tmp_path / "b/result") is None
    assert stopped(tmp_path / "c/result") == REASON
    record = read_json(tmp_path / "c/record/record.json")
    assert (record["stage"], list(record["inputs"])) == ("test_stopped", [(tmp_path / "a/result").as_posix()])
    assert capsys.readouterr().err.count(REASON) == 2


def training(out: Path, version: int | None = None) -> None:
    """Saves its state before it finds what forbids the rest."""
    with resumable_output(out, stage="training", version=VERSION, inputs=[], seed=0) as (_, checkpoints):
        checkpoints.offer(1, lambda: {"at": 1})
        assert [path for path in Path().glob(".work/**/*") if path.is_file()]
        raise Stopped(REASON)


def test_its_checkpoints_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_CHECKPOINT_SECONDS", "0")
    run(training, "--out", tmp_path / "a")
    assert not [path for path in Path().glob(".work/**/*") if path.is_file()]
    assert stopped(tmp_path / "a/result") == REASON


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a paper in which `token` stopped at both seeds and `segment` at the second one, and its tables."""
    results = make_results(tmp_path_factory.mktemp("stopped"), rows=("phi3-mini", "bandit", "segment"))
    shutil.rmtree(results / "segment/policy/segment/1")
    for name in ("token/0", "token/1", "segment/1"):
        folder = results / "segment/policy" / name / "result"
        folder.mkdir(parents=True)
        write_json(folder / STOPPED_FILE, {"reason": f"{REASON} <b>", "metrics": {}})
    tables.build(results, "segment", (0, 1), results / "segment/tables")
    return results


def test_tables_say_what_stopped_and_at_which_seeds(made_up: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = made_up / "segment/tables/result/tables.json"
    rows = {row["name"]: row for row in read_json(made)["tables"][0]["rows"]}
    assert {cell["status"] for cell in rows["token"]["cells"].values() if cell["published"]} == {"stopped"}
    assert rows["segment"]["cells"]["alpaca_wr"]["status"] == "measured"
    assert list(rows["segment"]["cells"]["alpaca_wr"]["seeds"]) == ["0"]
    assert rows["bandit"]["stopped"] == {}
    inputs = read_json(made_up / "segment/tables/record/record.json")["inputs"]
    assert (made_up / "segment/policy/token/0/result").as_posix() in inputs
    print_table(made, "segment/1")
    text = " ".join(capsys.readouterr().out.split())
    assert f"token stopped at seed 0, 1: {REASON} <b>." in text
    assert f"segment stopped at seed 1, measured at 0: {REASON} <b>." in text


def test_the_last_line_of_a_run_counts_what_stopped() -> None:
    done = {"policy-a": StageDone("ran", 3.0), "policy-b": StageDone("restored", 1.0)}
    summary = RunSummary(current=["prepare-x"], done=done, stopped={"policy-b": REASON})
    assert summary.line() == "1 current, 1 ran, 1 restored, 1 of them stopped"


def test_tracking_gets_a_failed_run_with_the_reason(tmp_path: Path) -> None:
    root = small_repository.create(tmp_path)
    graph.write(root, graph.matrix_folders("testbed", "segment"))
    folder = root / "results/testbed/segment/policy/segment/1/result"
    folder.mkdir(parents=True)
    (folder / STOPPED_FILE).write_text(json.dumps({"reason": REASON, "metrics": {}}))
    (found,) = outcomes.outcomes(root, "segment", "testbed")
    assert found.failure is not None
    assert found.failure["message"] == f"stopped: {REASON}"
    assert found.metrics == {}
