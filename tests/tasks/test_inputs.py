"""A stage's inputs edited while it runs: its result would be locked under inputs that it never saw."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rlhf_core.errors import DataError
from tasks.running.artifacts import stage_output


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("row.yaml").write_text("seed: 0\n")
    Path("data/result").mkdir(parents=True)
    Path("data/result/train.jsonl").write_text("{}\n")
    return tmp_path


def plain() -> AbstractContextManager[Path]:
    return stage_output("out", stage="policy", version=1, inputs=["row.yaml", "data/result"])


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
    folder: Path, edit: Callable[[], None], named: str
) -> None:
    def run() -> None:
        with plain() as result:
            (result / "metrics.json").write_text("{}")
            edit()

    with pytest.raises(DataError, match=f"file {named}: it changed while .*Run the same command again"):
        run()
    assert list((folder / "out").iterdir()) == []


def test_an_input_written_again_with_the_same_content_is_no_change(folder: Path) -> None:
    with plain() as result:
        (result / "metrics.json").write_text("{}")
        Path("row.yaml").unlink()
        Path("row.yaml").write_text("seed: 0\n")
    assert (folder / "out" / "result" / "metrics.json").exists()
