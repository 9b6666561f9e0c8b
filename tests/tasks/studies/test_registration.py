"""Registration: seeds follow from the committed file, a started study stays as it is, the log is only added to."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from rlhf_core.errors import DataError, RecipeError
from tasks.studies.registration import (
    LOG,
    Registration,
    check_log,
    check_record,
    check_unchanged,
    note_start,
    record_file,
    registration,
    starts,
)
from tasks.studies.world_seeds import END_OF_VERDICTS, FIRST_OF_VERDICTS, check_world_seed

FILE = Path("studies") / "credit.yaml"


def git(root: Path, *words: str) -> str:
    call = ["git", "-c", "user.name=a", "-c", "user.email=a@b.c", "-C", str(root), *words]
    return subprocess.run(call, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "studies").mkdir()
    (tmp_path / FILE).write_text("title: Credit\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "A study")
    return tmp_path


def own(root: Path) -> Registration:
    return registration(root, root / FILE)


def change(root: Path, *, commit: bool) -> None:
    (root / FILE).write_text("title: Other\n")
    if commit:
        git(root, "commit", "-qam", "Changed")


def test_worlds_are_drawn_from_the_file(clone: Path) -> None:
    before = [own(clone).world(index) for index in range(50)]
    assert len(set(before)) == 50
    assert all(FIRST_OF_VERDICTS <= number < END_OF_VERDICTS for number in before)
    assert before == [own(clone).world(index) for index in range(50)]
    change(clone, commit=True)
    assert not {own(clone).world(index) for index in range(50)} & set(before)


def test_a_study_runs_as_it_is_committed(clone: Path) -> None:
    change(clone, commit=False)
    with pytest.raises(RecipeError, match="differs from the committed one"):
        own(clone)
    (clone / "studies" / "new.yaml").write_text("title: New\n")
    with pytest.raises(RecipeError, match="is not committed"):
        registration(clone, clone / "studies" / "new.yaml")


def test_a_started_study_stays_as_it_is(clone: Path) -> None:
    note_start(clone, own(clone), [5], "pilot")
    change(clone, commit=True)
    check_unchanged(clone, own(clone))  # a pilot is no start
    note_start(clone, own(clone), [7], "verdict")
    (clone / FILE).write_text("title: Third\n")
    git(clone, "commit", "-qam", "Changed again")
    with pytest.raises(RecipeError, match="was changed after its first start"):
        check_unchanged(clone, own(clone))


def test_every_start_is_a_line_of_the_log(clone: Path) -> None:
    note_start(clone, own(clone), [7, 3], "verdict")
    note_start(clone, own(clone), [9], "verdict")
    lines = starts(clone)
    assert [line["worlds"] for line in lines] == [[3, 7], [9]]
    assert {line["digest"] for line in lines} == {own(clone).digest}


@pytest.mark.parametrize("fault", ["removed", "changed", "first"])
def test_a_committed_line_of_the_log_stays(clone: Path, fault: str) -> None:
    note_start(clone, own(clone), [1], "verdict")
    note_start(clone, own(clone), [2], "verdict")
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "Started")
    check_log(clone)
    lines = (clone / LOG).read_text().splitlines()
    changed = {"removed": lines[:1], "changed": [lines[0], lines[1].replace("[2]", "[4]")], "first": lines[::-1]}[fault]
    (clone / LOG).write_text("\n".join(changed) + "\n")
    with pytest.raises(DataError, match="a line was changed or removed"):
        note_start(clone, own(clone), [3], "verdict")


@pytest.mark.parametrize(
    ("number", "pilot"),
    [(0, False), (9, True), (1000, False), (1100, False), (150, False), (250, True), (999_999, False)],
)
def test_a_seed_that_does_not_fit_its_use_is_refused(number: int, *, pilot: bool) -> None:
    with pytest.raises(RecipeError, match=f"seed {number}"):
        check_world_seed(number, pilot=pilot)


def test_seeds_of_pilots_and_verdicts(clone: Path) -> None:
    check_world_seed(100, pilot=True)
    check_world_seed(199, pilot=True)
    check_world_seed(own(clone).world(0), pilot=False)


def test_a_record_belongs_to_the_registered_study(clone: Path) -> None:
    first = own(clone)
    record = {"digest": first.digest, "commit": first.commit, "study": "credit", "world": first.world(0)}
    file = record_file("credit", first.world(0))
    check_record(clone, file, record, first)
    with pytest.raises(DataError, match="another version"):
        check_record(clone, file, record | {"digest": "0" * 64}, first)
    before = git(clone, "commit-tree", git(clone, "mktree"), "-m", "empty")
    with pytest.raises(DataError, match="does not have"):
        check_record(clone, file, record | {"commit": before}, first)
    tree = git(clone, "rev-parse", "HEAD^{tree}")
    other = git(clone, "commit-tree", tree, "-m", "elsewhere")
    with pytest.raises(DataError, match="not in this history"):
        check_record(clone, file, record | {"commit": other}, first)
    json.dumps(record)
