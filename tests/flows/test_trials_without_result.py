"""Trials of tuning whose stages fail: a divergence above a policy is the trial's outcome, another failure is the
run's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.scheduler import RunFailed, RunSummary
from flows.study import run_trials
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.studies.trials import Record, TuningPlan, record_to_continue, tuning_plan
from tests.flows.test_study import SPACES, TUNED
from tests.small_repository import create, write_yaml

PIPELINE = "pipelines/as-it-is/tiny/dvc.yaml"
MODEL, SFT = (f"{PIPELINE}:{stage}-100" for stage in ("reward_model-segment-bandit", "sft"))
BANDIT, DPO = (f"{PIPELINE}:policy-segment-tiny-{row}-t0-100" for row in ("bandit", "dpo"))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = create(tmp_path / "tree")
    write_yaml(made / "params" / "tuning.yaml", SPACES)
    monkeypatch.setattr("flows.study.get_run_logger", lambda: SimpleNamespace(info=lambda *_: None))
    return made


def tried(root: Path, monkeypatch: pytest.MonkeyPatch, rows: list[str], summary: RunSummary) -> Record:
    """The record after the first trial of some rows, whose stages end as the summary says."""
    spec: StudySpec = typed(StudySpec, TUNED, "studies/tiny.yaml")
    plan: TuningPlan = tuning_plan(root, "tiny", spec, 1)
    record = record_to_continue(root, plan, [100])
    monkeypatch.setattr("flows.study.run_stale", lambda *_: summary)
    run_trials(root, plan, record, 100, [(row, 0) for row in rows])
    return record


def test_a_trial_whose_reward_model_diverged_is_recorded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = RunSummary(
        failed={MODEL: f"stage {MODEL} failed with exit code 2: step 3: loss nan, gradient norm nan"},
        skipped={BANDIT: f"reads from {MODEL}, which failed"},
    )
    record = tried(root, monkeypatch, ["bandit"], summary)
    run: dict[str, Any] = record["rows"]["bandit"]["trials"][0]["runs"]["100"]["as-it-is"]
    assert run["diverged"] == "reward_model-segment-bandit-100 diverged: step 3: loss nan, gradient norm nan"
    assert run["core_seconds"] == 0.0


def test_a_failed_run_names_the_failure_and_no_divergence(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = RunSummary(
        failed={DPO: "stage failed with exit code 2: gradient norm is nan", SFT: "no space left on device"},
        skipped={BANDIT: f"reads from {SFT}, which failed"},
    )
    summary.failed_seconds[DPO] = (2.0, 1)
    with pytest.raises(RunFailed) as error:
        tried(root, monkeypatch, ["bandit", "dpo"], summary)
    assert str(error.value).endswith(". no space left on device")
