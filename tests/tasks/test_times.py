"""Time of kinds of stages, by their records, and of a run, by its file."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

from tasks.graph import times
from tasks.graph.times import RunTimes, StageTime, stage_time


def record(root: Path, out: str, **values: float) -> Path:
    folder = root / "results" / "testbed" / out
    (folder / "record").mkdir(parents=True)
    (folder / "record" / "record.json").write_text(json.dumps(values))
    return folder


def stage(began: float, seconds: float, own: float, startup: float = 0.0) -> StageTime:
    return StageTime("policy-x", "ran", 1, began, seconds, own, startup)


def test_kinds_are_summed_over_papers_and_their_shares_are_one(tmp_path: Path) -> None:
    record(tmp_path, "par/policy/a/0", seconds=30.0, peak_memory_mb=900.0)
    record(tmp_path, "segment/policy/a/0", seconds=50.0, peak_memory_mb=700.0)
    record(tmp_path, "shared/data/dialogue", seconds=20.0)
    record(tmp_path, "par/tables-demo", seconds=5.0)
    policy, data, tables = times.by_kind(tmp_path / "results" / "testbed")
    assert (policy.kind, policy.stages, policy.seconds, policy.each, policy.peak_memory_mb) == (
        "policy",
        2,
        80,
        40,
        900,
    )
    assert (data.kind, data.peak_memory_mb, tables.kind) == ("data", None, "tables")
    assert policy.share + data.share + tables.share == pytest.approx(1.0)
    (only, _) = times.by_kind(tmp_path / "results" / "testbed", "par")
    assert (only.kind, only.seconds) == ("policy", 30.0)


def test_parts_of_a_run_sum_to_one_and_tell_what_is_beyond_the_stages() -> None:
    """Two slots for 100 s: nothing for 10 s, one stage alone for 40 s of 90, report and MLflow for 10 s."""
    run = RunTimes(2, seconds=100.0, stages=[stage(10, 80, 60, 12), stage(10, 40, 30, 4)])
    parts = run.parts()
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["stages"] == pytest.approx(90 / 200)
    assert parts["start of processes"] == pytest.approx(16 / 200)
    assert parts["DVC and Prefect"] == pytest.approx(14 / 200)
    assert parts["before and after"] == pytest.approx(2 * 20 / 200)
    assert parts["free slots"] == pytest.approx(40 / 200)
    assert "35.0 % beyond the stages' own work" in run.line()


def test_a_run_says_when_it_began_as_people_do() -> None:
    run = RunTimes(1, started="2026-03-01T09:05:07Z", seconds=60.0, stages=[stage(0, 34, 34)])
    said = "Last run, begun 01 March 2026, 09:05 UTC: 1 stage of 34 s each in 60 s on 1 slot; "
    assert run.line().startswith(said)


def test_a_stage_from_the_cache_has_no_work_of_its_own(tmp_path: Path) -> None:
    out = record(tmp_path, "par/policy/a/0", seconds=30.0, startup_seconds=4.0)
    shared = {"stage": "policy-a", "cores": 1, "began": 0.0}
    ran = stage_time(out, outcome="ran", seconds=36.0, **shared)
    assert (ran.own, ran.startup) == (30.0, 4.0)
    assert stage_time(out, outcome="restored", seconds=2.0, **shared).own == 0.0
    resumed = stage_time(out, outcome="ran", seconds=20.0, **shared)
    assert (resumed.own, resumed.startup) == (20.0, 0.0), "what interrupted runs did is not this run's"


def test_the_newest_run_is_read_back(tmp_path: Path) -> None:
    assert times.last_run(tmp_path) is None
    RunTimes(2, started="2026-03-01T09:00:00Z", stages=[stage(0, 1, 1)]).write(tmp_path)
    RunTimes(2, started="2026-03-01T10:00:00Z").write(tmp_path)
    newest = RunTimes(2, started="2026-03-01T09:30:00Z", stages=[stage(0, 3, 2)])
    newest.write(tmp_path)
    found = times.last_run(tmp_path)
    assert found is not None
    assert found.stages == newest.stages
    assert found.seconds == newest.seconds


def test_a_full_disk_leaves_the_file_of_the_first_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run writes its file after the stages, and again after report and MLflow."""
    run = RunTimes(2, stages=[stage(0, 3, 2)])
    run.write(tmp_path)

    def full(path: Path, text: str, **_: object) -> int:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    run.write(tmp_path)
    found = times.last_run(tmp_path)
    assert found is not None
    assert found.stages == run.stages
    assert len(list((tmp_path / times.RUNS).iterdir())) == 1, "no part of the second writing"


@pytest.mark.parametrize("text", ["", "{}", '{"stages": [{"other": 1}]}'])
def test_a_file_that_cannot_be_read_is_passed_over_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    good = RunTimes(2, started="2026-03-01T09:00:00Z", stages=[stage(0, 3, 2)])
    good.write(tmp_path)
    (tmp_path / times.RUNS / "2026-03-01T100000Z.json").write_text(text)
    found = times.last_run(tmp_path)
    assert found is not None
    assert found.started == good.started
    assert "2026-03-01T100000Z.json was skipped (" in capsys.readouterr().err


def test_the_table_names_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times.print_times(tmp_path, "testbed", None)
    assert "no stage has finished in results/testbed" in capsys.readouterr().out
    record(tmp_path, "par/policy/a/0", seconds=120.0)
    RunTimes(2, stages=[stage(0, 1, 1)]).write(tmp_path)
    times.print_times(tmp_path, "testbed", None)
    shown = capsys.readouterr().out
    assert "2.0 min" in shown
    assert "DVC and Prefect" in shown
