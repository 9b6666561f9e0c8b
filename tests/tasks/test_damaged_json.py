"""JSON files that a crash, a disk or a hand damaged: a message that names the file, never a traceback."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.data_specs.pair_formats import read_pairs
from tasks.graph.stage_checks import _architecture
from tasks.params.deepspeed import read_deepspeed
from tasks.report.records import _first_answers
from tasks.running.artifacts import read_json, read_jsonl
from tasks.studies.start_log import parse_starts

DAMAGED = {
    "cut": b'{"a": ',
    "nested": b"[" * 100_000,
    "binary": b"\xff\xfe\x00",
    "empty": b"",
    "a huge number": b"1" * 5000,
}


def _of_a_folder(read: Callable[[Path], Any], name: str) -> Callable[[Path], Any]:
    def of(file: Path) -> Any:
        place = file.parent / name
        place.parent.mkdir(parents=True, exist_ok=True)
        file.replace(place)
        return read(file.parent)

    return of


READERS: dict[str, Callable[[Path], Any]] = {
    "artifact": read_json,
    "rows of an artifact": read_jsonl,
    "deepspeed": read_deepspeed,
    "pairs": lambda file: read_pairs(file, {}),
    "log of starts": lambda file: parse_starts(file.read_text(encoding="utf-8", errors="replace")),
    "answers of a report": _of_a_folder(_first_answers, "result/generations.jsonl"),
    "configuration of a backbone": _of_a_folder(
        lambda folder: _architecture(folder, SimpleNamespace(source=".")),  # type: ignore[arg-type]
        "config.json",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("reader", READERS)
def test_a_damaged_file_is_named(tmp_path: Path, reader: str, damage: str) -> None:
    lines = reader in ("rows of an artifact", "log of starts", "answers of a report")
    if lines and damage == "empty":
        pytest.skip("a file without rows is one")
    file = tmp_path / "file.json"
    file.write_bytes(DAMAGED[damage])
    with pytest.raises(
        (DataError, RecipeError), match=r"not valid JSON|cannot be read|no such field|not a list|not UTF-8"
    ):
        READERS[reader](file)
