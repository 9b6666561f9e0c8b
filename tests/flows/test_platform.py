"""The platform for real: Prefect server and worker, and MLflow server on loopback, one start for all tests."""

from __future__ import annotations

import http.server
import os
import stat
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx
import psutil
import pytest
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    DeploymentFilter,
    DeploymentFilterId,
    LogFilter,
    LogFilterFlowRunId,
)  # fmt: skip
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Cancelling

from rlhf_core.errors import RewardsmithError
from tasks.running.artifacts import digest
from tasks.running.platform_state import FOLDER, client_environment, read_private
from tests import chaos, small_repository
from tests.chaos import Platform, servers, wait_for
from tests.small_repository import PROJECT, change_entry, command

pytestmark = pytest.mark.platform
ZONE = "Asia/Kolkata"
#: Recipe from the form, which the schedule runs.
RECIPE = {
    "name": "own",
    "start": "segment/bandit",
    "credit": "last_token",
    "changes": {"readout": {"segmenter": {"kind": "bandit"}, "read": "aggregate"}},
    "sync": False,
}


#: Stands for `tasks.reevaluation.evaluate`: a record with a regression.
REEVALUATION = """
import argparse, json
from pathlib import Path

parser = argparse.ArgumentParser()
for name in ("settings", "root", "name", "alias", "version", "digest", "result", "commit", "out"):
    parser.add_argument("--" + name)
options = parser.parse_args()
record = {
    "number": 1,
    "version": options.version,
    "reasons": ["the model changed"],
    "benchmarks": {"alpaca": {"mean": 0.4, "asked": 3}},
    "changes": {"alpaca": {"verdict": "regression"}},
    "canary": {"verdict": "no drift", "scores": {"0": 0.5}, "unparsable": 0},
    "alerts": [{"kind": "regression", "text": f"{options.name} lost 0.2"}],
}
folder = Path("reevaluations") / f"{options.name}@{options.alias}"
folder.mkdir(parents=True)
(folder / "000001.json").write_text(json.dumps(record))
Path(options.out).write_text(json.dumps(record))
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = small_repository.create(tmp_path_factory.mktemp("platform"), demo=("bandit",), seeds=(0,))
    (path / "tasks" / "reevaluation").mkdir()
    (path / "tasks" / "reevaluation" / "evaluate.py").write_text(REEVALUATION)
    settings = "schedule: {cron: '0 3 1 1 *', timezone: UTC}\nmodels: [{name: segment-policy-bandit}]\n"
    (path / "params" / "reevaluation.yaml").write_text(settings)
    command("git", "add", "-A", root=path)
    command("git", "commit", "-qm", "re-evaluation", root=path)
    os.environ["REWARDSMITH_GPUS"] = "a,b"
    try:
        servers(path, "up")
        yield path
    finally:
        servers(path, "down")
        del os.environ["REWARDSMITH_GPUS"]


@pytest.fixture(scope="module")
def platform(root: Path) -> Platform:
    return Platform(root)


@pytest.fixture(scope="module", autouse=True)
def due(platform: Platform) -> datetime:
    """Returns when the schedule, made before the other tests, fires: a whole minute, at least one minute ahead."""
    from prefect.client.schemas.actions import DeploymentScheduleCreate
    from prefect.client.schemas.schedules import CronSchedule

    at = (datetime.now(UTC) + timedelta(minutes=2)).replace(second=0, microsecond=0)
    there = at.astimezone(ZoneInfo(ZONE))
    cron = CronSchedule(cron=f"{there.minute} {there.hour} {there.day} {there.month} *", timezone=ZONE)
    found = platform.client.read_deployment_by_name("recipe/try-a-recipe")
    made = DeploymentScheduleCreate(schedule=cron, active=True, parameters=RECIPE)
    platform.client.create_deployment_schedules(found.id, [made])
    return at


def test_what_holds_secrets_is_for_its_owner_alone_and_outside_git(root: Path) -> None:
    assert stat.S_IMODE((root / FOLDER).stat().st_mode) == 0o700
    private = [*root.rglob("*.db"), *root.rglob("credentials.json"), *root.rglob("mlflow-auth.ini")]
    assert {file.name for file in private} >= {"prefect.db", "auth.db", "mlflow.db", "credentials.json"}
    for file in private:
        assert root / FOLDER in file.parents or stat.S_IMODE(file.stat().st_mode) == 0o600, file
    password = read_private(root / FOLDER / "credentials.json")["password"]
    assert len(password) >= 24
    assert ".work" not in command("git", "status", "--short", root=root).stdout
    for process in psutil.process_iter(["cmdline"]):
        words = " ".join(process.info["cmdline"] or ())
        assert password not in words, "a password on a command line is everybody's"


def test_servers_answer_on_this_machine_alone_to_the_generated_password_alone(root: Path) -> None:
    environment, known = client_environment(root), read_private(root / FOLDER / "credentials.json")
    prefect, user, password = environment["PREFECT_API_URL"], known["user"], known["password"]
    experiment = "api/2.0/mlflow/experiments/get-by-name?experiment_name=Default"
    pages = (f"{prefect}/admin/version", f"{environment['MLFLOW_TRACKING_URI']}/{experiment}")
    for url in pages:
        given = [httpx.get(url, auth=auth).status_code for auth in (None, (user, "wrong"), (user, password))]
        assert given == [401, 401, 200], url
    settings = httpx.get(f"{prefect.removesuffix('/api')}/ui-settings", auth=(user, password)).json()
    assert settings["api_url"] == prefect, "its page asks the server that it came from, whatever its port"
    pids: set[int] = set()
    for pid in Platform(root).pids().values():
        process = psutil.Process(pid)
        pids |= {process.pid, *(child.pid for child in process.children(recursive=True))}
    listening = [c for c in psutil.net_connections("inet") if c.pid in pids and c.status == psutil.CONN_LISTEN]
    assert len(listening) >= 2
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_flows_are_deployed_at_the_commit_with_forms_and_limits(platform: Platform) -> None:
    commit = command("git", "rev-parse", "HEAD", root=platform.root).stdout.strip()
    for flow, name in (("segment", "train-segment"), ("suite", "train-everything"), ("recipe", "try-a-recipe")):
        found = platform.client.read_deployment_by_name(f"{flow}/{name}")
        assert found.version == commit
        assert found.concurrency_limit is None or found.work_pool_name == "rewardsmith"
    form = platform.client.read_deployment_by_name("recipe/try-a-recipe").parameter_openapi_schema["properties"]
    assert {"par", "none"} <= set(form["shaping"]["enum"])
    assert "even_split" in form["credit"]["enum"]
    assert form["seeds"]["anyOf"][0]["items"]["type"] == "integer"
    with pytest.raises(PrefectHTTPStatusError, match=r"409|422"):
        platform.start("recipe", name="Not A Name")
    limits = platform.client.read_global_concurrency_limits(limit=50)
    assert {"cores", "gb", "a", "b"} <= {limit.name.rpartition("-")[2] for limit in limits}


def test_a_run_from_the_server_streams_its_log_reaches_mlflow_and_leaves_artifacts(platform: Platform) -> None:
    run = platform.start("segment", report=False)
    assert platform.wait(run).is_completed()
    wanted = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run]))
    wait_for(lambda: any("policy at work" in log.message for log in platform.client.read_logs(wanted, limit=200)))
    assert "up to date" in command("dvc", "status", root=platform.root).stdout
    wait_for(lambda: platform.held_slots() == 0)
    assert not chaos.faults_in_mlflow(platform.root)
    mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run]))
    found = {artifact.key: artifact for artifact in platform.client.read_artifacts(artifact_filter=mine)}
    assert f"({platform.environment['MLFLOW_TRACKING_URI']}/#/experiments/" in found["mlflow-segment"].data


def test_mlflow_knows_the_policy_by_its_alias(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    from tasks.tracking.models import Registry

    for name, value in platform.environment.items():
        monkeypatch.setenv(name, value)
    client = MlflowClient(tracking_uri=platform.environment["MLFLOW_TRACKING_URI"])
    registry = Registry(client)
    made = registry.promote("segment-policy-bandit", "champion", 0)
    found = registry.resolve("segment-policy-bandit", "champion")
    assert (found.version, found.path) == (made.version, "results/testbed/segment/policy/bandit/0/result")
    assert found.digest == digest(platform.root / found.path)
    assert client.get_run(found.run).inputs.dataset_inputs[0].dataset.name == "dialogue"
    assert registry.resolve("segment-reward-model-bandit", "seed-0").digest


def test_a_regression_is_an_event_a_post_and_a_record_under_dvc(platform: Platform) -> None:
    """After the test before it, which set the alias."""
    posted: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

    hook = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=hook.serve_forever, daemon=True).start()
    run = platform.start(
        "reevaluate", environment={"REWARDSMITH_WEBHOOK": f"http://127.0.0.1:{hook.server_address[1]}"}
    )
    state = platform.wait(run)
    hook.shutdown()
    assert state.is_completed(), state.message
    assert b"segment-policy-bandit lost 0.2" in posted[0]
    assert (platform.root / "reevaluations.dvc").exists()
    wanted = {"filter": {"event": {"name": ["rewardsmith.regression"]}}}
    found = platform.client._client  # Prefect writes events some seconds after they are sent
    wait_for(lambda: found.post("/events/filter", json=wanted).json()["total"] == 1, 60)


def test_a_cron_schedule_with_a_timezone_runs_at_its_time(platform: Platform, due: datetime) -> None:
    """Before the tests that remove results and hold slots, which the scheduled run needs."""
    found = platform.client.read_deployment_by_name("recipe/try-a-recipe")
    mine = DeploymentFilter(id=DeploymentFilterId(any_=[found.id]))

    def started() -> list[Any]:
        runs = platform.client.read_flow_runs(deployment_filter=mine)
        return [run for run in runs if run.start_time and run.auto_scheduled]

    wait_for(started, max(0.0, (due - datetime.now(UTC)).total_seconds()) + 60)
    run = started()[0]
    assert run.expected_start_time == due
    assert timedelta(seconds=-1) < run.start_time - due < timedelta(minutes=1)
    state = platform.wait(str(run.id))
    assert state.is_completed(), state.message
    tree = platform.root / ".work" / "recipes" / "own"
    assert (tree / "results/testbed/segment/policy/own/0/result/metrics.json").exists()
    assert "own" not in command("git", "status", "--short", root=platform.root).stdout
    call = (sys.executable, "-P", "-m", "flows", "adopt", '{"name": "own"}')
    done = command(*call, root=platform.root, PYTHONPATH=str(PROJECT))
    assert "params/segment/rows_own.yaml" in done.stdout, "adopted as a row"
    (platform.root / "params/segment/rows_own.yaml").unlink()
    command(sys.executable, "-P", "-m", "tasks.command_line", "graph", root=platform.root, PYTHONPATH=str(PROJECT))


def test_cancelling_ends_the_stages_and_frees_the_slots(platform: Platform) -> None:
    chaos.forget(platform.root)
    run = platform.start("segment", report=False, environment={"STAND_IN_SECONDS": "120"})
    wait_for(lambda: platform.stages() and platform.held_slots())
    platform.client.set_flow_run_state(run, Cancelling())
    assert platform.wait(run, 300).name == "Cancelled"
    wait_for(lambda: not chaos.stages(platform.root))
    wait_for(lambda: platform.held_slots() == 0)


def test_jobs_of_different_runs_see_disjoint_devices(platform: Platform, monkeypatch: Any) -> None:
    from flows.slots import Grant, shared

    for name, value in platform.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tasks.running.machine.gpus", lambda: ["a", "b"])
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    values = {
        PREFECT_API_URL: platform.environment["PREFECT_API_URL"],
        PREFECT_API_AUTH_STRING: platform.environment["PREFECT_API_AUTH_STRING"],
    }
    grant = Grant(0, ("a",), 0.0)
    with temporary_settings(values), shared(grant) as first, shared(grant) as second:
        assert {first.gpus, second.gpus} == {("a",), ("b",)}
        looks = iter([False, True])
        with pytest.raises(RewardsmithError, match="waited for slots"), shared(grant, lambda: next(looks)):
            pass
    wait_for(lambda: platform.held_slots() == 0)


def test_a_run_without_its_limit_or_its_tree_is_refused_and_up_makes_the_limit_again(platform: Platform) -> None:
    chaos.forget(platform.root)  # a run that has nothing to do needs no slots
    name = f"{platform.environment['REWARDSMITH_SLOTS']}-cores"
    platform.client.delete_global_concurrency_limit_by_name(name)
    state = platform.wait(platform.start("segment", report=False, sync=False))
    assert state.is_failed()
    assert f"the limit '{name}' does not exist" in state.message
    servers(platform.root, "up")
    platform.client.read_global_concurrency_limit_by_name(name)
    change_entry(platform.root / "params/segment/rows.yaml", "bandit", title="changed")
    state = platform.wait(platform.start("segment", report=False, sync=False))
    assert state.is_failed()
    assert "the tree differs in params/segment/rows.yaml" in state.message


def test_down_leaves_no_process(root: Path) -> None:
    pids = Platform(root).pids()
    servers(root, "down")
    assert not [p for p in psutil.process_iter() if p.pid in pids.values() and p.status() != psutil.STATUS_ZOMBIE]
    assert client_environment(root) == {}
