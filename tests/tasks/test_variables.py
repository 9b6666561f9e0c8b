"""Environment variables that would mislead a process are refused by name, unset or recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.running.launch import prepare_process
from tasks.running.variables import (
    refuse_unusable_prefect,
    seconds,
    whole_number,
)
from tasks.tracking.mirror import tracking_uri
from tests import small_repository
from tests.small_repository import PROJECT, clean_environment, command
from tests.tasks.golden_runs import GoldenRuns

SECRET = "hunter2"


def ran(root: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Runs a module of the project in a process of its own."""
    return subprocess.run(
        [sys.executable, "-P", "-m", *words],
        cwd=root,
        env=clean_environment(PYTHONPATH=str(PROJECT), **variables),
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("value", ["abc", "²", "", "0", "-1", "100000", "9" * 30])
def test_a_count_is_a_whole_number_that_a_machine_can_have(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("REWARDSMITH_THREADS", value)
    with pytest.raises(RecipeError, match=r"REWARDSMITH_THREADS is '.*at least 1 and at most 1024"):
        prepare_process()
    monkeypatch.setenv("REWARDSMITH_PROCESSES", value)
    with pytest.raises(RecipeError, match="REWARDSMITH_PROCESSES is"):
        whole_number("REWARDSMITH_PROCESSES", "1")


@pytest.mark.parametrize("value", ["abc", "nan", "inf", "-1"])
def test_seconds_are_a_number(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("REWARDSMITH_JOIN_SECONDS", value)
    with pytest.raises(RecipeError, match=f"REWARDSMITH_JOIN_SECONDS is '{value}'"):
        seconds("REWARDSMITH_JOIN_SECONDS", 300)


def test_a_record_names_the_commit_of_its_own_tree_and_variables_of_arithmetic(tmp_path: Path) -> None:
    mine, others = small_repository.create(tmp_path / "mine"), tmp_path / "others"
    others.mkdir()
    command("git", "init", "-q", root=others)
    line = GoldenRuns(mine / "tiny").write().command_line("dialogue", out=mine / "out")
    of_git = {"GIT_DIR": str(others / ".git"), "GIT_WORK_TREE": str(others)}
    done = ran(mine, "tasks.prepare", *line, **of_git, MKL_CBWR="COMPATIBLE")
    assert done.returncode == 0, done.stderr
    assert "note: MKL_CBWR=COMPATIBLE changes arithmetic" in done.stderr
    record = json.loads((mine / "out" / "record" / "record.json").read_text())
    assert record["commit"] == command("git", "rev-parse", "HEAD", root=mine).stdout.strip()


def test_optimised_python_is_refused(tmp_path: Path) -> None:
    done = ran(tmp_path, "tasks.command_line", "graph", "--check", PYTHONOPTIMIZE="2")
    assert done.returncode == 2
    assert done.stderr.startswith("error: Python runs with -O or PYTHONOPTIMIZE")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "variable", "value"),
    [
        (("tasks.command_line", "init", "x"), "REQUESTS_CA_BUNDLE", "/nowhere.pem"),
        (("tasks.command_line", "init", "x"), "SSL_CERT_FILE", "/nowhere.pem"),
        (("flows", "adopt", '{"name": "x"}'), "ALL_PROXY", "ftp://127.0.0.1:1"),
        (("flows.servers", "up"), "ALL_PROXY", "ftp://127.0.0.1:1"),
    ],
)
def test_proxies_and_certificates_that_cannot_be_used_are_one_line(
    tmp_path: Path, words: tuple[str, ...], variable: str, value: str
) -> None:
    done = ran(tmp_path, *words, **{variable: value})
    assert done.returncode == 2
    assert variable in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("address", ["nonsense", f"http://me:{SECRET}@127.0.0.1:9/api", f"http://me:{SECRET}@[bad:9"])
def test_a_prefect_server_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", address)
    with pytest.raises(RewardsmithError, match="PREFECT_API_URL") as refused:
        refuse_unusable_prefect()
    assert SECRET not in str(refused.value)


def test_an_address_of_mlflow_that_cannot_be_read_is_refused_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://me:{SECRET}@[bad:9/")
    with pytest.raises(RewardsmithError, match="MLFLOW_TRACKING_URI is not a valid address") as refused:
        tracking_uri(Path())
    assert SECRET not in str(refused.value)
