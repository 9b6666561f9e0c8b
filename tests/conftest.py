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

#: Files that go to one process, which compiles DeepSpeed's operators or runs the stand-in repository once for them.
TOGETHER = (
    ("tests/rlhf_core/test_distributed.py", *(f"tests/tasks/test_{name}.py" for name in ("launch", "resume"))),
    tuple(f"tests/tasks/test_{name}.py" for name in ("command_line", "graph", "pages", "plan", "tracking")),
)


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
            return next((files[0] for files in TOGETHER if file in files), file)

    return Files(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=longest_first)


def longest_first(item: pytest.Item) -> float:
    """Returns a key by which the platform tests that may take longest begin, so that the processes end together."""
    limit = item.get_closest_marker("timeout")
    return -float(limit.args[0]) if limit and item.get_closest_marker("platform") else 0.0
