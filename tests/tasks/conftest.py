"""The golden runs and a finished stand-in repository, each made once per session."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import small_repository
from tests.small_repository import command
from tests.tasks.golden_runs import SharedRuns

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("REWARDSMITH_THREADS", "1")


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> SharedRuns:
    """The golden runs, each made when a test asks for it."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "golden"
    folder.mkdir(exist_ok=True)
    return SharedRuns(folder)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; tests that need it are skipped where it is absent."""
    default = Path(__file__).parents[2] / ".." / "shared" / "data"
    folder = Path(os.environ.get("REWARDSMITH_DATA", default))
    if not folder.is_dir():
        pytest.skip("no real data directory")
    return folder


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
