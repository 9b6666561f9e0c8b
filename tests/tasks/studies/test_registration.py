"""Registration: seeds follow from the committed file and its name, and fit their use."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_core.errors import RecipeError
from tasks.studies.registration import Registration, registration_of
from tasks.studies.world_seeds import END_REGISTERED, FIRST_REGISTERED, check_world_seed
from tests.tasks.studies.synthetic_study import git

FILE = Path("studies") / "credit.yaml"


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "studies").mkdir()
    (tmp_path / FILE).write_text("title: Credit\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "A study")
    return tmp_path


def own(root: Path) -> Registration:
    return registration_of(root, root / FILE)


def change(root: Path, *, commit: bool) -> None:
    (root / FILE).write_text("title: Other\n")
    if commit:
        git(root, "commit", "-qam", "Changed")


def test_worlds_are_drawn_from_the_file(clone: Path) -> None:
    before = [own(clone).world_seed(index) for index in range(50)]
    assert len(set(before)) == 50
    assert all(FIRST_REGISTERED <= number < END_REGISTERED for number in before)
    assert before == [own(clone).world_seed(index) for index in range(50)]
    change(clone, commit=True)
    assert not {own(clone).world_seed(index) for index in range(50)} & set(before)


def test_a_study_runs_as_it_is_committed(clone: Path) -> None:
    change(clone, commit=False)
    with pytest.raises(RecipeError, match="differs from the committed one"):
        own(clone)
    (clone / "studies" / "new.yaml").write_text("title: New\n")
    with pytest.raises(RecipeError, match="is not committed"):
        registration_of(clone, clone / "studies" / "new.yaml")


def test_two_studies_of_one_text_have_other_worlds(clone: Path) -> None:
    (clone / "studies" / "again.yaml").write_bytes((clone / FILE).read_bytes())
    git(clone, "add", "-A")
    git(clone, "commit", "-qm", "The same under another name")
    again = registration_of(clone, clone / "studies" / "again.yaml")
    assert again.digest == own(clone).digest
    assert not {again.world_seed(index) for index in range(50)} & {own(clone).world_seed(index) for index in range(50)}


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
    check_world_seed(own(clone).world_seed(0), pilot=False)
