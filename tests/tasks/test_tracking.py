"""MLflow as a view of the stage outputs: complete, idempotent, rebuilt at will."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from mlflow import MlflowClient

from rlhf_core.errors import RewardsmithError
from tasks.running.artifacts import digest, write_json, write_jsonl
from tasks.tracking import mirror as tracking
from tasks.tracking import outcomes
from tasks.tracking.models import Registry, model_name
from tests.small_repository import command

PROJECT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.platform
POLICY = "results/testbed/segment/policy"


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture(scope="module")
def mirrored(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished repository, mirrored once from nothing by the command; not to be changed."""
    root = Path(shutil.copytree(finished, tmp_path_factory.mktemp("mirrored") / "root", symlinks=True))
    call = ("python", "-m", "tasks.tracking.mirror", "--paper", "segment", "--root", str(root))
    said = command(*call, root=PROJECT, MLFLOW_TRACKING_URI="").stdout
    assert said.endswith(f"): {len(runs(root))} new, 0 replaced, 0 unchanged (0 failed stages)\n")
    return root


@pytest.fixture
def root(mirrored: Path, tmp_path: Path) -> Path:
    """A copy of it for one test; its runs' artifacts stay where they are."""
    return Path(shutil.copytree(mirrored, tmp_path / "root", symlinks=True))


def client_of(root: Path) -> MlflowClient:
    return MlflowClient(tracking_uri=tracking.tracking_uri(root))


def runs(root: Path, **tags: str) -> list[Any]:
    experiment = client_of(root).get_experiment_by_name("segment")
    query = " and ".join(f"tags.{name} = '{value}'" for name, value in tags.items())
    return list(client_of(root).search_runs([experiment.experiment_id], query, max_results=500))


def versions(root: Path) -> dict[tuple[str, str], Any]:
    found = client_of(root).search_model_versions(max_results=500)
    return {(version.name, str(version.version)): version for version in found}


def replace(path: Path, content: str) -> None:
    """Replaces a file of a result, which DVC may have linked to its cache, and removes the record that signs it."""
    path.unlink()
    path.write_text(content)
    (path.parents[1] / "record/record.json").unlink(missing_ok=True)


def test_each_result_is_one_run_with_its_tables_as_tags(mirrored: Path) -> None:
    tables = outcomes.tables_of_rows("segment")["segment"]
    assert {"Table 1", "Table 4"} <= set(tables)
    (run,) = runs(mirrored, row="segment", seed="0")
    assert {name for name in run.data.tags if name.startswith("Table ")} == set(tables)
    assert run.data.tags["key"] == "testbed/segment/policy/segment/0"
    keys = [each.data.tags["key"] for each in runs(mirrored)]
    assert len(keys) == len(set(keys)) > 5
    assert {each.info.status for each in runs(mirrored)} == {"FINISHED"}
    assert "mlflow.parentRunId" not in run.data.tags
    assert run.data.params["optimiser.value_clip"] == "0.25"
    assert run.data.tags["commit"] == "0" * 40
    assert any(name.startswith("lineage.") for name in run.data.tags)
    metrics = json.loads((mirrored / POLICY / "segment/0/result/metrics.json").read_text())
    assert run.data.metrics["alpaca_wr"] == metrics["alpaca_wr"]


def test_run_has_step_metrics_generations_and_pointer(mirrored: Path, tmp_path: Path) -> None:
    (run,), client = runs(mirrored, row="segment", seed="0"), client_of(mirrored)
    history = client.get_metric_history(run.info.run_id, "reward/segment")
    assert [metric.step for metric in history] == [0, 1, 2, 3, 4]
    artifacts = {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    assert artifacts == {"generations.json", "pointer.json", "model"}
    speed = client.get_metric_history(run.info.run_id, "system/update_tokens_per_second")
    assert [(metric.step, metric.value) for metric in speed] == [(1, 100.0), (2, 200.0)]
    folder = Path(client.download_artifacts(run.info.run_id, "pointer.json", str(tmp_path)))
    assert json.loads(folder.read_text())["digest"] == run.data.tags["digest"]
    assert not list((mirrored / "mlruns").rglob("*.safetensors"))


def test_every_model_is_a_folder_of_its_run_and_is_registered_once(root: Path) -> None:
    first = versions(root)
    assert {name for name, _ in first} >= {"segment-policy-segment", "segment-reward-model-segment"}
    for version in first.values():
        assert version.source.endswith(f"/{version.run_id}/artifacts/model")
        files = {path.name for path in Path(urlsplit(version.source).path).iterdir()}
        assert files == {"MLmodel", "model_code.py", "pointer.json"}
    again = "import sys; from pathlib import Path; from tasks.tracking.mirror import sync; "
    again += "print(sync(Path(sys.argv[1]), 'segment').line(), 'torch' in sys.modules)"
    said = command(sys.executable, "-c", again, str(root), root=PROJECT).stdout.splitlines()[-1]
    assert said.startswith(f"0 new, 0 replaced, {len(runs(root))} unchanged")
    assert said.endswith("False"), "it needs no torch"
    assert versions(root).keys() == first.keys()


def test_a_new_result_replaces_its_run_and_the_seeds_alias_follows_and_returns(root: Path) -> None:
    client, name, metrics = client_of(root), "segment-policy-bandit", root / POLICY / "bandit/0/result/metrics.json"
    own, registry = metrics.read_text(), Registry(client_of(root))
    model = registry.promote(name, "champion", 0)
    before = client.get_model_version_by_alias(name, "seed-0").tags["digest"]

    replace(metrics, json.dumps(json.loads(own) | {"alpaca_wr": 77.0, "hacking_onset": 3}))
    alarms = [{"step": 9, "kind": "kl", "since": 7, "message": "kl is 9, above 8"}]
    alarms += [{"step": 3, "kind": "fall", "since": 1, "message": "the proxy rose"}]
    write_jsonl(metrics.parent / "alarms.jsonl", alarms)
    changed = tracking.sync(root, "segment")
    assert (changed.new, changed.replaced) == (0, 1)
    (run,) = runs(root, row="bandit", seed="0")
    assert (run.data.tags["version"], run.data.metrics["alpaca_wr"]) == ("2", 77.0)
    assert run.data.tags["hacking_onset"] == "3"
    assert run.data.tags["alarms"] == "fall at step 3, kl at step 9"
    assert "alarms.json" in {artifact.path for artifact in client.list_artifacts(run.info.run_id)}
    found = client.get_model_version_by_alias(name, "seed-0")
    assert found.tags["digest"] == digest(metrics.parent) != before
    assert client.get_run(found.run_id).info.lifecycle_stage == "active"
    again = registry.resolve(name, "champion")
    assert (again.version, client.get_run(again.run).info.lifecycle_stage) == (model.version, "deleted")

    replace(metrics, own)
    (metrics.parent / "alarms.jsonl").write_text("")
    tracking.sync(root, "segment")
    found = client.get_model_version_by_alias(name, "seed-0")
    assert found.tags["digest"] == before == digest(metrics.parent)
    client.delete_registered_model_alias(name, "seed-0")
    tracking.sync(root, "segment")
    again = client.get_model_version_by_alias(name, "seed-0")
    assert (again.version, again.run_id) == (found.version, found.run_id), "no second version of the same"


def test_an_unfinished_run_is_made_again(root: Path) -> None:
    (run,) = runs(root, row="bandit", seed="0")
    client_of(root).delete_tag(run.info.run_id, "complete")
    assert tracking.sync(root, "segment", rows=("bandit",)).new == 1
    (again,) = runs(root, row="bandit", seed="0")
    assert again.info.status == "FINISHED"


def test_failed_stage_appears_as_failed_and_recovers(root: Path) -> None:
    result = root / POLICY / "bandit/1/result"
    kept = result.rename(result.parent / "kept")
    failure = root / ".work/failures/policy-segment-bandit-1.json"
    failure.parent.mkdir(parents=True)
    write_json(failure, {"message": "non-finite loss", "exit_code": 2})
    assert tracking.sync(root, "segment").failed == 1
    (run,) = runs(root, row="bandit", seed="1")
    assert (run.info.status, run.data.tags["failure"]) == ("FAILED", "non-finite loss")
    kept.rename(result)
    failure.unlink()
    assert tracking.sync(root, "segment").failed == 0
    assert runs(root, row="bandit", seed="1")[0].info.status == "FINISHED"


def test_unreachable_database_is_one_clear_error(mirrored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{mirrored}/dvc.yaml/mlflow.db")
    with pytest.raises(RewardsmithError, match="cannot be prepared"):
        tracking.sync(mirrored, "segment")


@pytest.mark.parametrize(
    ("scale", "kind", "name"),
    [
        ("small", "policy", "segment-small-policy-bandit"),
        ("testbed", "policy", "segment-policy-bandit"),
        ("testbed", "normaliser", None),
    ],
)
def test_models_of_other_scales_have_names_of_their_own(scale: str, kind: str, name: str | None) -> None:
    assert model_name("segment", scale, kind, "bandit") == name
