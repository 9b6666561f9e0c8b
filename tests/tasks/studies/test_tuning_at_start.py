"""The record of tuning cannot be changed once worlds have run: it says which rows' losses count."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.studies.trial_records import tuning_file
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, git, write_worlds

LOSSES = (-9.0, -8.0, -10.0, -9.5)
HYPOTHESES = {"beats": STUDY["hypotheses"]["beats"]}


def loaded(root: Path) -> StudyState:
    return load_study(root, root / "studies" / "credit.yaml")


def write_tuning(root: Path, sft: float, *, commit: bool = True) -> None:
    """A record of one trial of the segment row, whose SFT model has a rate; below 60 it is not broken."""
    run = {"metric": 60.0, "sft": sft, "curve": {}, "core_seconds": 1.0, "settings": "a", "commit": "b"}
    trials = [{"point": {"lr": 1.0}, "runs": {"100": {"short-sum": run}}}]
    row: dict[str, Any] = {"kind": "ppo", "cells": ["short-sum"], "fixed": [], "space": {}, "trials": trials}
    record = {"study": "credit", "metric": "win_rate_vs_sft", "seeds": [100], "rows": {"segment": row}}
    (root / tuning_file("credit")).parent.mkdir(parents=True, exist_ok=True)
    (root / tuning_file("credit")).write_text(json.dumps(record))
    if commit:
        git(root, "add", "reference")
        git(root, "commit", "-qm", "Tuning")


def worlds(root: Path) -> None:
    own = commit_study(root, {**STUDY, "hypotheses": HYPOTHESES})
    write_worlds(root, own, lambda i, c, r: 55.0 + (LOSSES[i] if r == "segment" else 0.0))


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A study that was tuned, whose row lost in every world."""
    git(tmp_path, "init", "-q")
    write_tuning(tmp_path, 50.0)
    worlds(tmp_path)
    return tmp_path


def test_a_row_is_not_declared_broken_after_it_lost(tuned: Path) -> None:
    """The edited record used to be read, and the finding was 'broken'."""
    assert loaded(tuned).findings[0].word == "contradicted"
    for commit in (False, True):
        write_tuning(tuned, 70.0, commit=commit)
        with pytest.raises(
            DataError, match=r"tuning.credit\.json: was changed after the first start of study 'credit'"
        ):
            loaded(tuned)


def test_a_record_that_was_removed_is_missed(tuned: Path) -> None:
    (tuned / tuning_file("credit")).unlink()
    with pytest.raises(DataError, match="was changed after the first start"):
        loaded(tuned)


def test_a_record_that_came_after_the_first_start_is_not_read(tmp_path: Path) -> None:
    """It used to count from its commit on, and the row that had lost was 'broken'."""
    worlds(tmp_path)
    assert loaded(tmp_path).notes == ()
    for commit in (False, True):
        write_tuning(tmp_path, 70.0, commit=commit)
        state = loaded(tmp_path)
        assert state.findings[0].word == "contradicted"
        assert state.tuning is None
        (note,) = state.notes
        assert "reference/tuning/credit.json is not in commit" in note
        assert note.endswith("its rows count as not tuned")
