"""MLflow's databases: no password in any text, and a damaged file named with its remedy."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from rlhf_core.errors import RewardsmithError
from tasks.tracking.databases import refuse_unusable, without_passwords


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


@pytest.mark.parametrize("uri", ["postgresql:///mlflow?host=/var/run", "postgresql://a:1,b:2/mlflow"])
def test_addresses_without_one_server_are_left_to_the_driver(uri: str) -> None:
    refuse_unusable(uri)
