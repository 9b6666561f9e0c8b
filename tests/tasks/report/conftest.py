"""One made-up set of stage outputs, its tables and its page, shared by the tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasks import tables
from tasks.report.__main__ import write_report
from tests.tasks.report.fixture_results import make_results, sign


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`results/testbed` with made-up outputs and the tables stage run on them."""
    folder = make_results(tmp_path_factory.mktemp("made-up"))
    sign(folder / "segment" / "policy" / "segment")
    tables.build(folder, "segment", (0, 1), folder / "segment" / "tables")
    return folder


@pytest.fixture(scope="session")
def page(results: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered index.html."""
    return write_report(results, tmp_path_factory.mktemp("page"))
