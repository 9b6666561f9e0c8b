"""MLflow as a store: one writer at a time, no password in any text, links to runs."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from rlhf_core.errors import RewardsmithError
from tasks.tracking import mirror as tracking
from tasks.tracking.databases import refuse_unusable, without_passwords
from tests.small_repository import begin_repository, command


@pytest.fixture
def trees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A repository and a git worktree of it, without a platform."""
    monkeypatch.delenv("REWARDSMITH_PLATFORM", raising=False)
    main, other = tmp_path / "main", tmp_path / "main" / ".work" / "recipes" / "own"
    begin_repository(main)
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:s3cret@host:5000/api failed", "http://host:5000/api failed"),
        ("postgresql://me:p@ss@db/x and again http://a:b@c", "postgresql://db/x and again http://c"),
        ("sqlite:////home/me/mlflow.db", "sqlite:////home/me/mlflow.db"),
        ("write to me@example.org", "write to me@example.org"),
    ],
)
def test_addresses_are_shown_without_users_and_passwords(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + b"\1" * 600])
def test_a_damaged_database_is_named_with_its_remedy(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mlflow.db"
    file.write_bytes(content)
    with pytest.raises(RewardsmithError, match=r"mlflow\.db cannot be prepared.*database.*rewardsmith sync"):
        refuse_unusable(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_a_database_server_that_does_not_answer_is_named_at_once(tmp_path: Path) -> None:
    with socket.socket() as taken:  # bound, but not listening: nobody else can answer there
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        with pytest.raises(RewardsmithError, match=rf"no database server answers at 127\.0\.0\.1:{port}") as refused:
            refuse_unusable(f"postgresql+psycopg2://me:s3cret@127.0.0.1:{port}/mlflow")
    assert "s3cret" not in str(refused.value)


def test_a_link_is_to_the_experiment_on_the_server_without_its_password(tmp_path: Path) -> None:
    for uri, link in (
        ("http://lab:secret@127.0.0.1:5000/", "http://127.0.0.1:5000/#/experiments/17/runs"),
        (f"sqlite:///{tmp_path}/mlflow.db", None),
    ):
        tracking.note_experiment(tmp_path, "segment", uri, "17")
        assert tracking.link_to_runs(tmp_path, "segment") == link
