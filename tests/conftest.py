"""Deals the platform tests to processes, and gives each process a home of Prefect's files of its own."""

from __future__ import annotations

import os
import tempfile
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler.loadscope import LoadScopeScheduling

#: Before `flows` is imported. Two processes that make one database of Prefect's at once break it.
_HOME = tempfile.TemporaryDirectory(prefix="prefect-", ignore_cleanup_errors=True)
os.environ["PREFECT_HOME"] = _HOME.name

#: Files whose platform tests share nothing and take minutes each.
APART = ("tests/flows/test_rehearse.py", "tests/tasks/test_model_families.py", "tests/test_adding.py")
#: Files that go to one process with another: both compile DeepSpeed's operators.
TOGETHER = {"tests/tasks/test_launch.py": "tests/rlhf_core/test_distributed.py"}


def group_of(test: str) -> str:
    """Returns the name of the tests that go to one process: those of a file, which share its servers and follow each
    other.

    Args:
        test: pytest's id of a test.
    """
    file = test.partition("::")[0]
    return test if file in APART else TOGETHER.get(file, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    if config.getoption("dist") != "loadscope":
        return None
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        """Deals a group after the other to the process that has next to nothing left."""

        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=longest_first)


def longest_first(item: pytest.Item) -> float:
    """Returns a key by which the platform tests that may take longest begin, so that the processes end together."""
    limit = item.get_closest_marker("timeout")
    return -float(limit.args[0]) if limit and item.get_closest_marker("platform") else 0.0
