"""A stage's inputs edited while it runs: its result would be locked under inputs that it never saw."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tasks.running import artifacts
from tasks.running.artifacts import stage_output
from tasks.running.checkpoints import resumable_output
from tasks.running.stage import USER_ERROR
from tests.small_repository import PROJECT

Output = Callable[[], AbstractContextManager[Path]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("row.yaml").write_text("seed: 0\n")
    Path("data/result").mkdir(parents=True)
    Path("data/result/train.jsonl").write_text("{}\n")
    return tmp_path


def plain() -> AbstractContextManager[Path]:
    return stage_output("out", stage="policy", version=1, inputs=["row.yaml", "data/result"])


@contextmanager
def resumable() -> Iterator[Path]:
    with resumable_output("out", stage="policy", version=1, inputs=["row.yaml", "data/result"], seed=0) as (path, _):
        yield path


OUTPUTS = pytest.mark.parametrize("output", [plain, resumable])


def edit_row() -> None:
    Path("row.yaml").write_text("seed: 1\n")


def edit_keeping_size_and_time() -> None:
    before = Path("row.yaml").stat()
    edit_row()
    os.utime("row.yaml", ns=(before.st_atime_ns, before.st_mtime_ns))


def add_file() -> None:
    Path("data/result/more.jsonl").write_text("{}\n")


def remove_row() -> None:
    Path("row.yaml").unlink()


@OUTPUTS
@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (edit_row, "row.yaml"),
        (edit_keeping_size_and_time, "row.yaml"),
        (remove_row, "row.yaml"),
        (add_file, "data/result"),
    ],
)
def test_an_input_that_changes_meanwhile_is_named_and_nothing_is_left(
    folder: Path, output: Output, edit: Callable[[], None], named: str
) -> None:
    def run() -> None:
        with output() as result:
            (result / "metrics.json").write_text("{}")
            edit()

    with pytest.raises(DataError, match=f"file {named}: it changed while .*Run the same command again"):
        run()
    assert list((folder / "out").iterdir()) == []


@OUTPUTS
def test_an_input_written_again_with_the_same_content_is_no_change(folder: Path, output: Output) -> None:
    with output() as result:
        (result / "metrics.json").write_text("{}")
        Path("row.yaml").unlink()
        Path("row.yaml").write_text("seed: 0\n")
    assert (folder / "out" / "result" / "metrics.json").exists()


def test_inputs_that_nobody_wrote_to_are_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    whole = artifacts.digest
    monkeypatch.setattr(artifacts, "digest", lambda path: (read.append(str(path)), whole(path))[1])
    with plain():
        pass
    assert sorted(name for name in read if not name.startswith("out")) == ["data/result", "row.yaml"]


def test_the_stage_ends_as_for_any_error_of_the_users(folder: Path) -> None:
    code = (
        "from pathlib import Path\nfrom tasks.running.artifacts import stage_output\n"
        "from tasks.running.stage import run_main\n"
        "def main(_):\n"
        "    with stage_output('out', stage='policy', version=1, inputs=['row.yaml']):\n"
        "        Path('row.yaml').write_text('seed: 1')\n"
        "run_main(main)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PROJECT)}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert ended.returncode == USER_ERROR
    assert ended.stderr.startswith("error: file row.yaml: it changed while")
