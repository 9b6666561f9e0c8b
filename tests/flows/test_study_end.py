"""The last line of `python -m flows.study`."""

from __future__ import annotations

from pathlib import Path

from flows.study import records_written, study
from tests.flows.test_study import STUDY
from tests.small_repository import command, create, write_yaml

FILE = Path("reference") / "studies" / "tiny" / "pilot-100.json"


def test_it_says_how_many_worlds_are_left() -> None:
    line = records_written("tiny", [FILE], without_record=3, worlds=4)
    assert line.endswith("git add reference/studies; 3 of 4 worlds left")
    assert records_written("tiny", [FILE], without_record=0, worlds=4).endswith("git add reference/studies")


def test_pilots_that_have_records_are_not_called_worlds(tmp_path: Path) -> None:
    root = create(tmp_path / "tree")
    write_yaml(root / "studies" / "tiny.yaml", STUDY)
    command("git", "add", "studies", root=root)
    command("git", "commit", "-qm", "A study", root=root)
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_text("{}")
    assert study.fn("tiny", pilots=[100], root=str(root)) == "tiny: these pilots have their records"
