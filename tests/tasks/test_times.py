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


def stage(began: float, seconds: float, own: float) -> StageTime:
    return StageTime("policy-x", "ran", 1, began, seconds, own)


def test_kinds_are_summed_over_papers_and_their_shares_are_one(tmp_path: Path) -> None:
    record(tmp_path, "par/policy/a/0", seconds=30.0, peak_memory_mb=900.0)
    record(tmp_path, "segment/policy/a/0", seconds=50.0, peak_memory_mb=700.0)
    record(tmp_path, "shared/data/dialogue", seconds=20.0)
    policy, data = times.by_kind(tmp_path / "results" / "testbed")
    assert (policy.kind, policy.stages, policy.seconds, policy.each, policy.peak_memory_mb) == (
        "policy", 2, 80, 40, 900,
    )  # fmt: skip
    assert (data.kind, data.peak_memory_mb, policy.share + data.share) == ("data", None, 1.0)
    (only,) = times.by_kind(tmp_path / "results" / "testbed", "par")
    assert (only.kind, only.seconds) == ("policy", 30.0)


def test_parts_of_a_run_sum_to_one_and_tell_what_is_beyond_the_stages() -> None:
    """Two slots for 100 s: nothing for 10 s, one stage alone for 40 s of 90, report and MLflow for 10 s."""
    run = RunTimes(2, seconds=100.0, stages=[stage(10, 80, 60), stage(10, 40, 30)])
    parts = run.parts()
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["stages"] == pytest.approx(90 / 200)
    assert parts["processes, DVC and Prefect"] == pytest.approx(30 / 200)
    assert parts["before and after"] == pytest.approx(2 * 20 / 200)
    assert parts["free slots"] == pytest.approx(40 / 200)
    assert "2 stages in 1.7 min on 2 slot(s); 35.0 % beyond the stages' own work" in run.line()


def test_a_stage_from_the_cache_has_no_work_of_its_own(tmp_path: Path) -> None:
    out = record(tmp_path, "par/policy/a/0", seconds=30.0)
    for outcome, seconds, own in (("ran", 36.0, 30.0), ("restored", 2.0, 0.0), ("ran", 20.0, 20.0)):
        found = stage_time(out, stage="policy-a", outcome=outcome, cores=1, began=0.0, seconds=seconds)
        assert found.own == own, "what interrupted runs did is not this run's"


def test_the_newest_run_is_read_back_and_a_damaged_file_is_passed_over_with_its_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert times.last_run(tmp_path) is None
    RunTimes(2, started="2026-03-01T09:00:00Z", stages=[stage(0, 1, 1)]).write(tmp_path)
    RunTimes(2, started="2026-03-01T10:00:00Z").write(tmp_path)
    newest = RunTimes(2, started="2026-03-01T09:30:00Z", stages=[stage(0, 3, 2)])
    newest.write(tmp_path)
    for text in ("", "{}", '{"stages": [{"other": 1}]}'):
        (tmp_path / times.RUNS / "2026-03-01T100000Z.json").write_text(text)
        found = times.last_run(tmp_path)
        assert found is not None
        assert (found.stages, found.seconds) == (newest.stages, newest.seconds)
        assert "2026-03-01T100000Z.json was skipped (" in capsys.readouterr().err

    def full(path: Path, text: str, **_: object) -> int:
        path.open("w").close()
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_text", full)
    newest.write(tmp_path)
    assert times.last_run(tmp_path) == found, "a full disk leaves the file of the first writing"
