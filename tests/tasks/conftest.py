"""A repository whose stand-in stages have all run, made once and copied for each test that changes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests import small_repository
from tests.small_repository import command


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository after `dvc repro`, its results committed; not to be changed."""
    root = small_repository.create(tmp_path_factory.mktemp("finished"))
    command("dvc", "repro", "-q", root=root)
    command("git", "add", "-A", root=root)
    command("git", "commit", "-qm", "results", root=root)
    return root


@pytest.fixture
def finished_copy(finished: Path, tmp_path: Path) -> Path:
    """A copy of it for one test."""
    return Path(shutil.copytree(finished, tmp_path / "copy", symlinks=True))
