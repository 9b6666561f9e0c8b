"""Ports, credentials and processes, without starting a server."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import prefect.runtime
import psutil
import pytest

import flows.servers.__main__ as servers
from flows import deployments
from flows.servers import processes, settings
from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.graph import rows
from tasks.graph.scale import Scale
from tasks.running import platform_state
from tests.small_repository import PROJECT

PORTS = {"prefect": 4200, "mlflow": 5000}


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> settings.Settings:
    monkeypatch.delenv("REWARDSMITH_HOST", raising=False)
    return settings.load(tmp_path, PORTS)


def test_credentials_are_made_once_for_the_owner_alone_and_on_no_command_line(
    tmp_path: Path, made: settings.Settings
) -> None:
    path = tmp_path / platform_state.FOLDER / "credentials.json"
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    words = " ".join(word for call in made.commands().values() for word in call)
    assert made.password not in words
    assert made.secret not in words
    assert settings.load(tmp_path, PORTS).password == made.password
    path.unlink()
    assert settings.load(tmp_path, PORTS).password != made.password


def test_prefects_own_files_are_for_the_owner_alone(tmp_path: Path) -> None:
    home = tmp_path / ".work" / "prefect"
    home.mkdir(parents=True, mode=0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment["PYTHONPATH"] = str(PROJECT)
    subprocess.run([sys.executable, "-P", "-c", "import flows"], cwd=tmp_path, env=environment, check=True)
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(tmp_path / platform_state.FOLDER))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "up", refuse)
    assert servers.main(["up"]) == 2
    assert f"error: file {tmp_path / platform_state.FOLDER}: cannot be used" in capsys.readouterr().err


def test_a_bad_proxy_keeps_a_platform_from_starting_and_not_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://x")
    assert servers.main(["up"]) == 2
    assert "correct or unset" in capsys.readouterr().err
    assert servers.main(["down"]) == 0


@pytest.mark.parametrize("name", settings.STORES)
def test_stores_of_ones_own_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "postgresql://me:word@db/lab")
    with pytest.raises(RecipeError, match=rf"{name} is set, .*infra/compose.yaml") as caught:
        settings.load(tmp_path, PORTS)
    assert "word@" not in str(caught.value)


def test_servers_inherit_no_secrets_of_others(made: settings.Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "HF_TOKEN", "SIGNING_SECRET")
    for name in names:
        monkeypatch.setenv(name, "word")
    monkeypatch.setenv("HF_HOME", "kept")
    given: dict[str, dict[str, str]] = {}

    def start(call: list[str], **options: Any) -> SimpleNamespace:
        given[name] = options["env"]
        return SimpleNamespace(pid=os.getpid())

    monkeypatch.setattr(subprocess, "Popen", start)
    for name in made.commands():
        processes.start(made, name)
    found = {name: {key for key in names if key in environment} for name, environment in given.items()}
    assert found == {"prefect": set(), "mlflow": set(), "worker": {*names}}
    assert all(environment["HF_HOME"] == "kept" for environment in given.values())
    assert given["mlflow"]["MLFLOW_FLASK_SERVER_SECRET_KEY"] == made.secret, "its own secret"


def test_clients_never_ask_the_address_that_binds_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REWARDSMITH_HOST", "0.0.0.0")
    made = settings.load(tmp_path, PORTS)
    assert "0.0.0.0" in made.commands()["prefect"]
    assert "0.0.0.0" not in str([made.client(), *(made.environment(name) for name in made.commands())])
    assert made.url("mlflow") == "http://127.0.0.1:5000"


def test_the_usual_port_else_a_free_one_and_a_chosen_one_must_be_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert processes.choose_port("127.0.0.1", "mlflow", None, port) != port
        with pytest.raises(RewardsmithError, match=rf"port {port} for mlflow is taken or not allowed"):
            processes.choose_port("127.0.0.1", "mlflow", port, None)
    assert processes.choose_port("127.0.0.1", "mlflow", None, port) == port


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("::1", "REWARDSMITH_HOST is ::1, which is neither an IPv4 address nor the name of a host with one"),
        ("no.such.name.invalid", "REWARDSMITH_HOST is no.such.name.invalid, which is neither an IPv4 address"),
        ("192.0.2.1", "REWARDSMITH_HOST is 192.0.2.1, which is not an address of this machine"),
    ],
)
def test_a_host_that_cannot_be_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], host: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("REWARDSMITH_HOST", host)
    assert servers.main(["up"]) == 2
    assert message in capsys.readouterr().err


#: A run that ends in order, and one that was killed and left a stage.
RUN = """
import os, signal, subprocess, sys
from pathlib import Path
from flows.working_tree import mark

signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
stage = subprocess.Popen(["sleep", "600"], env={**os.environ, **mark(Path(sys.argv[1]))}, start_new_session=True)
try:
    print(stage.pid, flush=True)
    stage.wait()
finally:
    stage.kill()
    stage.wait()
"""


@pytest.mark.parametrize("killed", [False, True])
def test_down_ends_runs_and_their_stages_whichever_server_lives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], killed: bool
) -> None:
    platform = str(tmp_path.resolve() / platform_state.FOLDER)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), platform_state.PLATFORM: platform}
    environment |= {platform_state.SERVER: "worker", "PREFECT__FLOW_RUN_ID": str(uuid4())}
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path)], env=environment, stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    stage = psutil.Process(int(run.stdout.readline()))
    try:
        if killed:
            run.kill()
            run.wait()
        servers.down(tmp_path)
        run.wait(10)
        assert not platform_state.lives(stage)
    finally:
        run.kill()
        run.stdout.close()
        if stage.is_running():
            stage.kill()
    ended = "1 process(es) of killed runs" if killed else "1 run(s)"
    assert capsys.readouterr().out == f"stopped {ended}\n"


def test_a_server_is_ended_with_what_outlived_its_leader_and_a_reused_process_id_is_none(tmp_path: Path) -> None:
    """A server whose leader alone is killed leaves children that hold the port."""
    child = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    mine = {platform_state.PLATFORM: str(tmp_path.resolve()), platform_state.SERVER: "mlflow"}
    leader = subprocess.Popen(
        [sys.executable, "-c", child], stdout=subprocess.PIPE, text=True, env={**os.environ, **mine}
    )
    assert leader.stdout is not None
    left = psutil.Process(int(leader.stdout.readline()))
    try:
        for pid, up in ((leader.pid, True), (os.getpid(), False), (1e999, False), ("x", False)):
            (tmp_path / "state.json").write_text(json.dumps({"ports": {}, "processes": {"mlflow": pid}}))
            assert platform_state.is_up(tmp_path, "mlflow") is up
        leader.kill()
        leader.wait()
        assert platform_state.lives(left)
        assert not processes.stop(tmp_path, "mlflow")
        assert not platform_state.lives(left)
    finally:
        leader.stdout.close()
        if left.is_running():
            left.kill()


def test_every_paper_has_a_deployment() -> None:
    made = deployments.deployments(PROJECT)
    testbed = Scale(PROJECT, "testbed")
    papers = {name for name in rows.papers(PROJECT) if any(map(testbed.has, rows.read_rows(PROJECT, name)[0].values()))}
    assert {one.flow for one in made} == {*papers, "suite", "recipe", "reevaluate"} - {"demo"}
    (suite,) = (one for one in made if one.flow == "suite")
    assert suite.parameters == {"full": True}, "the suite trains the matrix, not the demo's rows"
    assert [one.overlapping for one in made if one.schedule] == ["CANCEL_NEW"]


def test_a_deployment_whose_version_is_no_commit_is_not_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.deployments import refuse_edited_tree

    monkeypatch.setattr(prefect.runtime.deployment, "id", str(uuid4()), raising=False)
    monkeypatch.setattr(prefect.runtime.deployment, "version", "d41d8cd98f00b204e9800998ecf8427e", raising=False)
    refuse_edited_tree(tmp_path)
    monkeypatch.setattr(prefect.runtime.deployment, "version", "0" * 40, raising=False)
    with pytest.raises(RewardsmithError, match="is not in this repository"):
        refuse_edited_tree(tmp_path)


@pytest.mark.parametrize("cron", ["61 3 * * *", "0 3 31 2 *"])
def test_a_wrong_schedule_is_refused_before_anything_starts(cron: str, tmp_path: Path) -> None:
    (tmp_path / "params").mkdir()
    text = f"models: [{{name: segment-policy-segment}}]\nschedule: {{cron: '{cron}'}}\n"
    (tmp_path / "params" / "reevaluation.yaml").write_text(text)
    with pytest.raises(RecipeError, match=r"params/reevaluation\.yaml: schedule: cron is "):
        servers.up(tmp_path, {})
    assert not (tmp_path / ".work").exists()
