"""MLflow's databases: no password in any text, and a damaged file named with its remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tasks.tracking.databases import without_passwords
from tasks.tracking.mirror import prepare_database


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
    with pytest.raises(DataError, match=r"mlflow\.db.*no readable database.*Move it away; rewardsmith sync"):
        prepare_database(f"sqlite:///{file}", tmp_path)
    assert file.read_bytes() == content
