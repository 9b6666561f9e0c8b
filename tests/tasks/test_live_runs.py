"""MLflow while stages train: a run from its start, with the history's rows as they come, gone on with after a kill."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf_core.supervised.config import TrainingConfig
from tasks.running.checkpoints import CheckpointStore, RunCheckpoints
from tasks.running.progress import FILE, WORK, LiveHistory, read_history, run_folder
from tasks.running.supervised import train_resumably
from tasks.tracking import live
from tasks.tracking import mirror as tracking
from tests import small_repository
from tests.small_repository import command

ADDRESS, OUT = "policy-segment-segment-0", "results/testbed/segment/policy/segment/0"
KEY = "testbed/segment/policy/segment/0"
ROWS = [{"step": step, "kl": 0.1 * step, "reward": 1.0 + step} for step in range(1, 9)]


def test_a_live_history_is_that_of_the_run_also_after_it_went_back_to_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / FILE
    first = LiveHistory(path)
    first.write(ROWS[:2])
    first.write(ROWS[:5])
    assert read_history(path) == ROWS[:5]
    LiveHistory(path).write(ROWS[:4])  # the process that goes on from step 3
    assert read_history(path) == ROWS[:4]


def test_a_training_stage_has_its_history_on_disk_while_it_trains(tmp_path: Path) -> None:
    checkpoints = RunCheckpoints(CheckpointStore(tmp_path, "sft-x", "key"), seconds=3600)
    model, data = torch.nn.Linear(2, 1), torch.ones(4, 2)
    seen: list[int] = []

    def measured(step: int) -> dict[str, float]:
        seen.append(len(read_history(tmp_path / "sft-x" / FILE)))
        return {}

    target = SimpleNamespace(lengths=[1] * 4, every=2, compared=False, weight=lambda rows: float(len(rows)))
    target.loss = lambda rows: (model(data[list(rows)]).sum(), float(len(rows)), {})
    config = TrainingConfig(updates=6, batch=2, microbatch=2, learning_rate=0.1)
    history = train_resumably(model, target, config, seed=0, checkpoints=checkpoints, label="x", measured=measured)
    assert seen == [0, 0, 1, 1, 2, 2]
    assert read_history(tmp_path / "sft-x" / FILE) == history
    checkpoints.store.remove()
    assert read_history(tmp_path / "sft-x" / FILE) == []


class Following:
    """`tasks.tracking.live` in a thread, told as the flow tells it."""

    def __init__(self, root: Path) -> None:
        read, self.write = os.pipe()
        self.thread = threading.Thread(target=live.follow, args=(root, "segment", read), daemon=True)
        self.thread.start()

    def say(self, line: str) -> None:
        os.write(self.write, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self.write)
        self.thread.join(timeout=120)
        assert not self.thread.is_alive()


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository without results, at whose stages nobody works yet."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(live, "SECONDS", 0.1)
    return small_repository.create(tmp_path / "tree")


def runs(root: Path) -> list[Any]:
    """The runs of the policy; none before the first."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    experiment = client.get_experiment_by_name("segment")
    return [] if experiment is None else client.search_runs([experiment.experiment_id], f"tags.key = '{KEY}'")


def found(root: Path) -> Any:
    (run,) = runs(root)
    return run


def steps(root: Path) -> list[tuple[int, float]]:
    """Steps and values of the policy's reward."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    histories = [client.get_metric_history(run.info.run_id, "reward") for run in runs(root)]
    return [(metric.step, metric.value) for metrics in histories for metric in metrics]


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.2)


def history(count: int) -> list[tuple[int, float]]:
    return [(int(row["step"]), row["reward"]) for row in ROWS[:count]]


@pytest.mark.platform
def test_a_run_is_filled_while_the_stage_trains_and_goes_on_after_a_kill(root: Path) -> None:
    path = root / WORK / run_folder("policy", OUT) / FILE
    first = Following(root)
    first.say(f"start {ADDRESS}")
    LiveHistory(path).write(ROWS[:3])
    wait_for(lambda: steps(root) == history(3))
    begun = found(root)
    assert (begun.info.status, begun.data.tags["status"]) == ("RUNNING", "running")
    assert begun.data.params["optimiser.value_clip"] == "0.25"
    first.close()  # the flow was killed
    assert found(root).info.status == "KILLED"
    assert tracking.sync(root, "segment").line().startswith("0 new"), "a sync leaves it for the stage to go on with"

    second = Following(root)
    LiveHistory(path).write(ROWS[:2])  # from the checkpoint after step 2
    second.say(f"start {ADDRESS}")
    wait_for(lambda: found(root).info.status == "RUNNING")
    going_on = LiveHistory(path)
    going_on.write(ROWS[:2])
    going_on.write(ROWS[:6])
    wait_for(lambda: steps(root) == history(6))
    shutil.rmtree(path.parent)
    write_result(root)
    second.say(f"end {ADDRESS}")
    second.close()
    run = found(root)
    assert run.info.run_id == begun.info.run_id, "the same run"
    assert (run.info.status, run.data.tags["status"], run.data.tags["complete"]) == ("FINISHED", "finished", "true")
    assert "live" not in run.data.tags
    assert steps(root) == history(8)
    again = tracking.sync(root, "segment")
    assert (again.new, again.replaced, again.unchanged) == (0, 0, 1)
    assert found(root).data.tags["digest"] == run.data.tags["digest"]


def write_result(root: Path) -> None:
    """Writes the result of the policy."""
    result = root / OUT / "result"
    result.mkdir(parents=True)
    (result / "metrics.json").write_text(json.dumps({"alpaca_wr": 61.0}))
    (result / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))


@pytest.mark.platform
@pytest.mark.usefixtures("prefect_server")
def test_a_flow_shows_its_stages_and_a_sync_after_it_finds_nothing_to_do(root: Path) -> None:
    choice = {"paper": "segment", "report": False, "rows": ["bandit"], "seeds": [0]}
    call = ("python", "-P", "-m", "flows", "paper", json.dumps(choice))
    command(*call, root=root, PYTHONPATH=str(small_repository.PROJECT))
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    made = client.search_runs([client.get_experiment_by_name("segment").experiment_id])
    assert {run.info.status for run in made} == {"FINISHED"}
    kinds = [run.data.tags["key"].split("/")[2] for run in made]
    assert sorted(kinds) == ["policy", "reward_model", "sft"]
    assert not (root / ".work/logs/live-runs.log").read_text()
    assert tracking.sync(root, "segment").line().startswith("0 new, 0 replaced, 3 unchanged")
