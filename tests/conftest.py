"""Deals the platform tests to processes, and gives each process files and a server of Prefect of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler.loadscope import LoadScopeScheduling

#: Before `flows` is imported. Two processes that make one database of Prefect's at once break it.
_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name

#: Files of platform tests that share a finished repository, so that one process takes them.
TOGETHER = tuple(f"tests/tasks/test_{name}.py" for name in ("command_line", "graph", "pages", "plan", "tracking"))
#: Files of platform tests that take minutes, longest first: when they are dealt first, the processes end together.
LONGEST = ("test_tour", "test_command_line", "test_platform", "test_scheduler", "test_work_pool", "test_study")
LONGEST += ("test_quickstart", "test_rehearse", "test_launch", "test_resume", "test_rehearsal", "test_distributed")
LONGEST += ("test_adding", "test_mlflow_models", "test_live_runs", "test_model_families")


@pytest.fixture(scope="session")
def _prefect_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    from tests.team import Server

    server = Server(tmp_path_factory.mktemp("prefect"))
    yield server.url
    server.close()


@pytest.fixture(scope="module")
def prefect_server(_prefect_url: str) -> Iterator[str]:
    """The address of the one Prefect server of this process of tests, which flows here and in other processes use."""
    import flows  # noqa: F401, I001  (its environment comes before Prefect's import)
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: _prefect_url}), pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_API_URL", _prefect_url)
        yield _prefect_url


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        """Deals the tests of a file, which share its servers and follow each other, to one process."""

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return TOGETHER[0] if file in TOGETHER else file

    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path.stem, len(order)) if item.get_closest_marker("platform") else -1)
