"""The platform tests of a file go to one process, in their order, and each process has Prefect's files to itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import APART, TOGETHER, group_of
from tests.small_repository import PROJECT

LOOK = """
import os
import pytest
@pytest.mark.parametrize("number", range(3))
def test_it(number):
    with open("seen", "a") as seen:
        print("{file}", number, os.environ["PYTEST_XDIST_WORKER"], os.environ["PREFECT_HOME"], file=seen)
"""


def test_a_files_tests_go_to_one_process_in_order(tmp_path: Path) -> None:
    shutil.copy(PROJECT / "tests" / "conftest.py", tmp_path)
    for file in ("one", "two"):
        (tmp_path / f"test_{file}.py").write_text(LOOK.format(file=file))
    words = ["-p", "no:cacheprovider", "-q", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=kept, check=True, capture_output=True)
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    for file in ("one", "two"):
        assert [number for of, number, *_ in seen if of == file] == ["0", "1", "2"]
    processes = {(file, worker) for file, _, worker, _ in seen}
    assert len(processes) == 2
    homes = {(worker, home) for _, _, worker, home in seen}
    assert len(homes) == len({home for _, home in homes}) == len({worker for _, worker in processes})


def test_files_that_are_dealt_in_another_way_are_there() -> None:
    assert [file for file in (*APART, *TOGETHER, *TOGETHER.values()) if not (PROJECT / file).exists()] == []
    assert group_of("tests/flows/test_scheduler.py::test_it[a::b]") == "tests/flows/test_scheduler.py"
    assert group_of(f"{APART[0]}::test_it[one]") != group_of(f"{APART[0]}::test_it[two]")


def test_the_tests_that_run_alone_are_where_make_looks_for_them() -> None:
    mark = f"mark.{'alone'}"
    alone = [path for path in (PROJECT / "tests").rglob("*.py") if mark in path.read_text(encoding="utf-8")]
    assert alone
    assert all(path.is_relative_to(PROJECT / "tests" / "flows") for path in alone)
    assert '-m "platform and alone" tests/flows' in (PROJECT / "Makefile").read_text(encoding="utf-8")
