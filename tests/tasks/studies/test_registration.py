"""Registration: worlds follow from the committed file, and a record counts if its commit follows the file's."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from tasks.commands.study import print_study
from tasks.studies import registration
from tasks.studies.best_trials import tuning_file
from tasks.studies.registration import (
    END_REGISTERED,
    FIRST_REGISTERED,
    Registration,
    check_tuning_seed,
    refuse_uncommitted_code,
    registration_of,
)
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, git, write_worlds

FILE = Path("studies") / "credit.yaml"


def rates(index: int, cell: str, row: str) -> float:
    return 50.0 + index + {"bandit": 0.0, "segment": 4.0 + index % 2, "token": 2.0}[row]


@pytest.fixture
def own(tmp_path: Path) -> Registration:
    return commit_study(tmp_path, STUDY)


def loaded(root: Path) -> StudyState:
    return load_study(root, root / FILE)


def test_worlds_are_drawn_from_the_name_and_the_file(tmp_path: Path, own: Registration) -> None:
    before = [own.world_seed(index) for index in range(50)]
    assert len({*before}) == 50
    assert all(FIRST_REGISTERED <= number < END_REGISTERED for number in before)
    assert before == [registration_of(tmp_path, tmp_path / FILE).world_seed(index) for index in range(50)]
    for other in (commit_study(tmp_path, STUDY, "again"), commit_study(tmp_path, {**STUDY, "margin": 9.0})):
        assert not {*before} & {other.world_seed(index) for index in range(50)}


def test_a_study_runs_as_it_is_committed(tmp_path: Path, own: Registration) -> None:
    for name in ("credit", "new"):
        (tmp_path / "studies" / f"{name}.yaml").write_text("title: Other\n")
        with pytest.raises(
            RecipeError, match=rf"studies/{name}\.yaml is not committed as it is.*git add studies/{name}"
        ):
            registration_of(tmp_path, tmp_path / "studies" / f"{name}.yaml")


def test_pilots_and_tuning_have_seeds_of_their_own() -> None:
    check_tuning_seed(100)
    check_tuning_seed(199)
    for seed in (0, 200):
        with pytest.raises(RecipeError, match=f"seed {seed}: tuning and pilots have seeds 100 to 199"):
            check_tuning_seed(seed)


def elsewhere(root: Path) -> str:
    """A commit beside the study's."""
    return git(root, "commit-tree", "HEAD^{tree}", "-m", "Elsewhere")


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("commit", elsewhere, "does not follow commit"),
        ("commit", lambda _: "0" * 40, "commit 0000000000 is not in this clone; fetch the whole history"),
        ("digest", lambda _: "0" * 64, "digest is 0000"),
        ("study", lambda _: "gate", "study is gate, not credit"),
        ("kind", lambda _: "pilot", "kind is pilot, not verdict"),
        ("world", lambda _: 5, "world is 5, not "),
    ],
)  # fmt: skip
def test_a_record_that_does_not_come_from_the_registered_study_does_not_count(
    tmp_path: Path, own: Registration, field: str, value: Callable[[Path], Any], said: str
) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    assert len(loaded(tmp_path).records) == 4
    file.write_text(json.dumps({**json.loads(file.read_text()), field: value(tmp_path)}))
    state = loaded(tmp_path)
    assert (len(state.records), state.findings) == (3, ())
    (note,) = state.notes
    assert note.startswith(f"not counted: {file.relative_to(tmp_path)}: ")
    assert said in note


def test_files_of_other_worlds_are_named_and_pilots_are_not(
    tmp_path: Path, own: Registration, capsys: pytest.CaptureFixture[str]
) -> None:
    files = write_worlds(tmp_path, own, rates)
    before = loaded(tmp_path)
    files[0].with_name("pilot-100.json").write_text("{}")
    files[0].with_name("1234567.json").write_text("{}")
    after = loaded(tmp_path)
    assert after.findings == before.findings
    assert before.notes == ()
    print_study(tmp_path, str(tmp_path / FILE))
    said = "- not counted: reference/studies/credit/1234567.json is not of a world of this study"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("before", [True, False])
def test_tuning_counts_if_it_was_committed_before_every_world(tmp_path: Path, own: Registration, before: bool) -> None:
    """Otherwise a row that lost could be called broken once its loss is known."""
    run = {"metric": 60.0, "sft": 70.0, "curve": {}, "core_seconds": 1.0, "settings": "a", "commit": "b"}
    trials = [{"point": {"lr": 1.0}, "runs": {"100": {"short-sum": run}}}]
    row: dict[str, Any] = {"kind": "ppo", "cells": ["short-sum"], "fixed": [], "space": {}, "trials": trials}
    record = {"study": "credit", "metric": "win_rate_vs_sft", "seeds": [100], "rows": {"bandit": row}}

    def tune() -> None:
        (tmp_path / tuning_file("credit")).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / tuning_file("credit")).write_text(json.dumps(record))
        git(tmp_path, "add", "reference")
        git(tmp_path, "commit", "-qm", "Tuning")

    if before:
        tune()
        own = commit_study(tmp_path, {**STUDY, "title": "Tuned"})
    write_worlds(tmp_path, own, rates)
    if not before:
        tune()
    state = loaded(tmp_path)
    assert [*state.tuned] == ["bandit"] * before
    assert [note.startswith("not counted: reference/tuning/credit.json, changed by") for note in state.notes] == (
        [] if before else [True]
    )


@pytest.mark.parametrize("name", ["rlhf_core/a.py", "params/a.yaml", "studies/credit.yaml"])
def test_a_world_runs_from_committed_code(
    tmp_path: Path, own: Registration, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "PROJECT", tmp_path)
    refuse_uncommitted_code(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("other")
    with pytest.raises(RecipeError, match=f"{name} differ from the commit"):
        refuse_uncommitted_code(tmp_path)
