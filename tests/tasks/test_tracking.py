"""MLflow as a view of the stage outputs: complete, idempotent, rebuilt at will."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from rlhf_core.errors import RewardsmithError
from tasks.running.artifacts import digest, write_json, write_jsonl
from tasks.tracking import mirror as tracking
from tasks.tracking import outcomes
from tasks.tracking.models import model_name
from tasks.tracking.searches import table_search
from tests.small_repository import clean_environment, command

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.platform


@pytest.fixture(scope="module")
def database(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty tracking database, made once: making one takes seconds."""
    path = tmp_path_factory.mktemp("database") / "mlflow.db"
    command("python", "-m", "mlflow", "db", "upgrade", f"sqlite:///{path}", root=finished)
    return path


@pytest.fixture
def root(finished_copy: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    shutil.copy(database, finished_copy / "mlflow.db")
    return finished_copy


def runs(root: Path, **tags: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    experiment = client.get_experiment_by_name("segment")
    query = " and ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
    return list(client.search_runs([experiment.experiment_id], query, max_results=500))


def test_each_result_is_one_run_with_its_tables_as_tags(root: Path) -> None:
    counts = tracking.sync(root, "segment")
    assert counts.failed == 0
    tables = outcomes.tables_of_rows("segment")["segment"]
    assert {"Table 1", "Table 4"} <= set(tables)
    (run,) = runs(root, row="segment", seed="0")
    assert {name for name in run.data.tags if name.startswith("Table ")} == set(tables)
    assert run.data.tags["key"] == "testbed/segment/policy/segment/0"
    keys = [each.data.tags["key"] for each in runs(root)]
    assert len(keys) == len(set(keys)) == counts.new
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.info.status == "FINISHED"
    assert run.data.params["optimiser.value_clip"] == "0.25"
    assert run.data.tags["commit"] == "0" * 40
    assert any(name.startswith("lineage.") for name in run.data.tags)
    metrics = json.loads((root / "results/testbed/segment/policy/segment/0/result/metrics.json").read_text())
    assert run.data.metrics["alpaca_wr"] == metrics["alpaca_wr"]


def test_the_search_of_a_table_finds_its_rows(root: Path) -> None:
    from mlflow import MlflowClient

    tracking.sync(root, "segment")
    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    found = table_search(root, "segment", "Table 1", "testbed")
    assert found is not None
    experiment = client.get_experiment_by_name("segment").experiment_id
    rows = {run.data.tags["row"] for run in client.search_runs([experiment], found.filter)}
    assert rows == {"phi3-mini", "bandit", "segment"}


def test_run_has_step_metrics_breakdown_generations_and_pointer(root: Path) -> None:
    from mlflow import MlflowClient

    tracking.sync(root, "segment")
    run = runs(root, row="segment", seed="0")[0]
    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    history = client.get_metric_history(run.info.run_id, "reward/segment")
    assert [metric.step for metric in history] == [0, 1, 2, 3, 4]
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"generations.json", "rollouts.json", "pointer.json", "model"}
    speed = client.get_metric_history(run.info.run_id, "system/update_tokens_per_second")
    assert [(metric.step, metric.value) for metric in speed] == [(1, 100.0), (2, 200.0)]
    folder = Path(client.download_artifacts(run.info.run_id, "pointer.json", str(root)))
    assert json.loads(folder.read_text())["digest"] == run.data.tags["digest"]
    assert not list((root / "mlruns").rglob("*.safetensors"))


def test_alarms_are_a_table_and_tags(root: Path) -> None:
    from mlflow import MlflowClient

    result = root / "results/testbed/segment/policy/segment/0/result"
    alarms = [{"step": 9, "kind": "kl", "since": 7, "message": "kl is 9, above 8"}]
    alarms += [{"step": 3, "kind": "fall", "since": 1, "message": "the proxy rose"}]
    write_jsonl(result / "alarms.jsonl", alarms)
    metrics = json.loads((result / "metrics.json").read_text())
    write_json(result / "metrics.json", metrics | {"hacking_onset": 3})
    tracking.sync(root, "segment")
    run = runs(root, row="segment", seed="0")[0]
    assert run.data.tags["hacking_onset"] == "3"
    assert run.data.tags["alarms"] == "fall at step 3, kl at step 9"
    artifacts = MlflowClient(tracking_uri=tracking.tracking_uri(root)).list_artifacts(run.info.run_id)
    assert "alarms.json" in {artifact.path for artifact in artifacts}


def test_repeating_changes_nothing_and_a_new_result_replaces_its_run(root: Path) -> None:
    first = tracking.sync(root, "segment")
    again = tracking.sync(root, "segment")
    assert (again.new, again.replaced, again.unchanged) == (0, 0, first.new)
    path = root / "results/testbed/segment/policy/bandit/0/result/metrics.json"
    content = json.loads(path.read_text()) | {"alpaca_wr": 77.0}
    path.unlink()  # DVC may have linked it to its cache
    path.write_text(json.dumps(content))
    (root / "results/testbed/segment/policy/bandit/0/record/record.json").unlink()
    changed = tracking.sync(root, "segment")
    assert (changed.new, changed.replaced) == (0, 1)
    (run,) = runs(root, row="bandit", seed="0")
    assert run.data.tags["version"] == "2"
    assert run.data.metrics["alpaca_wr"] == 77.0


@pytest.mark.parametrize("rows", [(), ("bandit",)])
def test_no_run_is_left_running(root: Path, rows: tuple[str, ...]) -> None:
    tracking.sync(root, "segment", rows=rows)
    assert {run.info.status for run in runs(root)} == {"FINISHED"}


def versions(root: Path) -> dict[tuple[str, str], Any]:
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=tracking.tracking_uri(root)).search_model_versions(max_results=500)
    return {(version.name, str(version.version)): version for version in found}


def test_every_model_is_a_folder_of_its_run_and_is_registered_once(root: Path) -> None:
    tracking.sync(root, "segment")
    first = versions(root)
    assert {name for name, _ in first} >= {"segment-policy-segment", "segment-reward-model-segment"}
    for version in first.values():
        assert version.source.endswith(f"/{version.run_id}/artifacts/model")
        assert {path.name for path in Path(urlsplit(version.source).path).iterdir()} == {
            "MLmodel",
            "model_code.py",
            "pointer.json",
        }
    again = "import sys; from pathlib import Path; from tasks.tracking.mirror import sync; "
    again += "sync(Path(sys.argv[1]), 'segment'); print('torch' in sys.modules)"
    assert command(sys.executable, "-c", again, str(root), root=PROJECT).stdout.splitlines()[-1] == "False"
    assert versions(root).keys() == first.keys()


def test_an_alias_whose_run_another_took_the_place_of_can_be_tagged(root: Path) -> None:
    from mlflow import MlflowClient

    from tasks.tracking.models import Registry

    tracking.sync(root, "segment")
    client, name = MlflowClient(tracking_uri=tracking.tracking_uri(root)), "segment-policy-bandit"
    registry = Registry(client)
    model = registry.promote(name, "champion", 0)
    path = root / "results/testbed/segment/policy/bandit/0/result/metrics.json"
    path.unlink()  # DVC may have linked it to its cache
    path.write_text(json.dumps({"alpaca_wr": 77.0}))
    (root / "results/testbed/segment/policy/bandit/0/record/record.json").unlink()
    tracking.sync(root, "segment")
    again = registry.resolve(name, "champion")
    assert (again.version, client.get_run(again.run).info.lifecycle_stage) == (model.version, "deleted")
    registry.tag(again, {"alert": "lost 0.2"})
    assert client.get_model_version(name, model.version).tags["alert"] == "lost 0.2"


def test_two_trees_that_mirror_into_one_store_at_once_wait_for_each_other(root: Path) -> None:
    """A recipe's worktree beside the tree that it belongs to."""
    other = root / ".work" / "recipes" / "own"
    command("git", "worktree", "add", "-q", "--detach", str(other), root=root)
    shutil.copytree(root / "results", other / "results", dirs_exist_ok=True)
    environment = clean_environment(MLFLOW_TRACKING_URI=tracking.tracking_uri(root))
    call = [sys.executable, "-m", "tasks.tracking.mirror", "--paper", "segment", "--root"]
    both = [
        subprocess.Popen([*call, str(tree)], cwd=PROJECT, env=environment, stdout=subprocess.PIPE, text=True)
        for tree in (root, other)
    ]
    said = sorted(process.communicate(timeout=300)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert ": 0 new, 0 replaced, " in said[0], "the second finds all that the first made"
    keys = [run.data.tags["key"] for run in runs(root)]
    assert len(keys) == len(set(keys))
    assert {run.data.tags["complete"] for run in runs(root)} == {"true"}


def test_an_unfinished_run_is_made_again(root: Path) -> None:
    from mlflow import MlflowClient

    tracking.sync(root, "segment")
    client = MlflowClient(tracking_uri=tracking.tracking_uri(root))
    run = runs(root, row="bandit", seed="0")[0]
    client.delete_tag(run.info.run_id, "complete")
    assert tracking.sync(root, "segment").new == 1
    assert len(runs(root, row="bandit", seed="0")) == 1


def test_a_seeds_alias_follows_a_result_that_comes_back_and_is_set_after_a_kill(root: Path) -> None:
    from mlflow import MlflowClient

    metrics = root / "results/testbed/segment/policy/bandit/0/result/metrics.json"
    client, name = MlflowClient(tracking_uri=tracking.tracking_uri(root)), "segment-policy-bandit"
    own = metrics.read_text()
    digests = []
    for content in (own, json.dumps({"alpaca_wr": 77.0}), own):
        metrics.unlink()  # DVC may have linked it to its cache
        metrics.write_text(content)
        (metrics.parents[1] / "record/record.json").unlink(missing_ok=True)
        tracking.sync(root, "segment")
        found = client.get_model_version_by_alias(name, "seed-0")
        digests.append(found.tags["digest"])
        assert digests[-1] == digest(metrics.parent)
        assert client.get_run(found.run_id).info.lifecycle_stage == "active"
    assert digests[0] == digests[2] != digests[1]
    client.delete_registered_model_alias(name, "seed-0")
    tracking.sync(root, "segment")
    again = client.get_model_version_by_alias(name, "seed-0")
    assert (again.version, again.run_id) == (found.version, found.run_id), "no second version of the same"


def test_failed_stage_appears_as_failed_and_recovers(root: Path) -> None:
    result = root / "results/testbed/segment/policy/bandit/1/result"
    kept = result.rename(result.parent / "kept")
    failure = root / ".work/failures/policy-segment-bandit-1.json"
    failure.parent.mkdir(parents=True)
    failure.write_text(json.dumps({"message": "non-finite loss", "exit_code": 2}))
    assert tracking.sync(root, "segment").failed == 1
    run = runs(root, row="bandit", seed="1")[0]
    assert run.info.status == "FAILED"
    assert run.data.tags["failure"] == "non-finite loss"
    kept.rename(result)
    failure.unlink()
    assert tracking.sync(root, "segment").failed == 0
    assert runs(root, row="bandit", seed="1")[0].info.status == "FINISHED"


def test_empty_server_is_rebuilt_from_the_outputs(root: Path) -> None:
    first = tracking.sync(root, "segment")
    (root / "mlflow.db").unlink()
    call = ("python", "-m", "tasks.tracking.mirror", "--paper", "segment", "--root", str(root))
    assert f"{first.new} new" in command(*call, root=PROJECT).stdout


def test_unreachable_database_is_one_clear_error(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{root}/dvc.yaml/mlflow.db")
    with pytest.raises(RewardsmithError, match="cannot be prepared"):
        tracking.sync(root, "segment")


def test_models_of_other_scales_have_names_of_their_own() -> None:
    stage = "pipelines/small/segment/dvc.yaml:policy-segment-bandit-0"
    assert model_name("segment", "small", stage, "bandit") == "segment-small-policy-bandit"
    assert model_name("segment", "testbed", stage, "bandit") == "segment-policy-bandit"
    assert model_name("segment", "testbed", "normaliser-segment-bandit-0", "bandit") is None
