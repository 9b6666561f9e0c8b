"""The last line of `rewardsmith study run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from flows.study import study, train_worlds
from rlhf_core.errors import RecipeError
from tests.flows.test_study import STUDY
from tests.small_repository import command, create, write_yaml

FILE = Path("reference") / "studies" / "tiny" / "pilot-100.json"


def committed(root: Path, study_: dict[str, Any]) -> None:
    write_yaml(root / "studies" / "tiny.yaml", study_)
    command("git", "add", "studies", root=root)
    command("git", "commit", "-qm", "A study", root=root)


def test_a_study_that_was_changed_between_two_worlds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next world would be logged with the new file's digest, and trained by the old one."""
    root = create(tmp_path / "tree")
    committed(root, STUDY)
    trained = []

    def run_world(folder: Path, _: object, __: object, seed: int, **options: object) -> Path:
        trained.append(seed)
        committed(folder, {**STUDY, "title": "Another"})
        return FILE

    monkeypatch.setattr("flows.study.run_world", run_world)
    monkeypatch.setattr("flows.study.train_worlds", train_worlds.fn)
    monkeypatch.chdir(root)
    with pytest.raises(RecipeError, match=r"studies/tiny\.yaml was changed since this command began"):
        study("tiny", pilots=[100, 101])
    assert trained == [100]


def test_pilots_that_have_records_are_not_called_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = create(tmp_path / "tree")
    committed(root, STUDY)
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_text("{}")
    monkeypatch.chdir(root)
    assert study("tiny", pilots=[100]) == "tiny: these pilots have their records"
