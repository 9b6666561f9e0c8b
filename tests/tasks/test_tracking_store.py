"""MLflow's store: one writer at a time from whichever tree, and an address whose password nobody else reads."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tasks.tracking import mirror as tracking
from tests.small_repository import command


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
