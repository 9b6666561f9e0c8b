"""MLflow's store: one writer at a time from whichever tree, and an address whose password nobody else reads."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RewardsmithError
from tasks.tracking import databases
from tasks.tracking import mirror as tracking
from tests.small_repository import command

#: Its driver finds the server by the file system, so that none has to answer here.
URI = "postgresql://someone:topsecret@/runs?host=/var/run/db.example"


@pytest.fixture
def upgrades(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Sequence[str], Mapping[str, str]]]:
    """Command lines and environments of upgrades, which do nothing."""
    made: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def run(call: Sequence[str], *, env: Mapping[str, str], **_: Any) -> subprocess.CompletedProcess[str]:
        made.append((call, env))
        return subprocess.CompletedProcess(call, 0, "", "")

    monkeypatch.setattr(databases.subprocess, "run", run)
    return made


def test_a_databases_password_is_on_no_command_line_and_in_no_note(
    tmp_path: Path, upgrades: list[tuple[Sequence[str], Mapping[str, str]]]
) -> None:
    for _ in range(2):
        tracking.prepare_database(URI, tmp_path)
    assert len(upgrades) == 1, "once for a database and a version"
    call, environment = upgrades[0]
    assert "topsecret" not in " ".join(call)
    assert environment["UPGRADE_MLFLOW"] == URI
    assert "UPGRADE_AUTH" not in environment
    assert "topsecret" not in (tmp_path / ".work" / "tracking-database").read_text()
    tracking.prepare_database(URI.replace("runs", "other"), tmp_path)
    assert len(upgrades) == 2


def test_a_database_that_cannot_be_reached_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "sqlalchemy.exc.OperationalError: (psycopg2.OperationalError) connection to server failed\n"
    said += "(Background on this error at: https://sqlalche.me/e/20/e3q8)\n"
    monkeypatch.setattr(databases.subprocess, "run", lambda call, **_: subprocess.CompletedProcess(call, 1, "", said))
    with pytest.raises(RewardsmithError, match=r"connection to server failed$") as caught:
        tracking.prepare_database(URI, tmp_path)
    assert "db.example" in str(caught.value)
    assert "topsecret" not in str(caught.value)
    assert not (tmp_path / ".work" / "tracking-database").exists()


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A repository and a git worktree of it, without a platform."""
    monkeypatch.delenv("REWARDSMITH_PLATFORM", raising=False)
    main, other = tmp_path / "main", tmp_path / "main" / ".work" / "recipes" / "own"
    main.mkdir()
    command("git", "init", "-q", root=main)
    for name in ("user.email", "user.name"):
        command("git", "config", name, "test@example.org", root=main)
    command("git", "commit", "-q", "--allow-empty", "-m", "start", root=main)
    command("git", "worktree", "add", "-q", "--detach", str(other), root=main)
    return main, other


def test_writers_of_two_trees_take_turns_and_the_second_says_that_it_waits(
    trees: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    main, other = trees
    order: list[str] = []

    def second() -> None:
        with tracking.only_writer(other):
            order.append("second")

    with tracking.only_writer(main):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(1)
        order.append("first")
    thread.join(30)
    assert order == ["first", "second"]
    assert "another sync writes into MLflow (process " in capsys.readouterr().err


def test_a_lock_is_where_the_platform_is_and_else_in_the_main_worktree(
    trees: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, other = trees
    assert tracking.store_folder(other) == tracking.store_folder(main) == main / ".work"
    assert tracking.store_folder(tmp_path) == tmp_path / ".work", "outside git"
    monkeypatch.setenv("REWARDSMITH_PLATFORM", str(main / ".work" / "platform"))
    assert tracking.store_folder(tmp_path) == main / ".work", "one lock, whether the platform is up or not"
