"""Differences between a study and its drafts, on its page and by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.report.atlas_page import write_atlas
from tasks.studies.drafts import draft_changes
from tasks.studies.verdicts import load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, git

FILE = Path("studies") / "credit.yaml"
FIRST, *OTHERS = STUDY["hypotheses"]


def versions(root: Path, *studies: dict[str, Any]) -> list[str]:
    for study in studies:
        commit_study(root, {**STUDY, **study})
    return draft_changes(root, "credit")


def test_a_study_without_drafts_and_one_whose_words_alone_changed_have_no_note(tmp_path: Path) -> None:
    worded = {name: {**each, "says": "Otherwise"} for name, each in STUDY["hypotheses"].items()}
    assert versions(tmp_path, {}) == []
    assert versions(tmp_path, {"hypotheses": worded, "title": "Otherwise", "hours": 9.0}, {}) == []


def test_what_is_dropped_or_changed_before_registration_is_named(tmp_path: Path) -> None:
    own = STUDY["hypotheses"]
    second = {OTHERS[0]: own[OTHERS[0]], "gone": own[FIRST], **own, FIRST: {**own[FIRST], "side": "below"}}
    drafts: list[dict[str, Any]] = [
        {"worlds": STUDY["worlds"] + 1, "kl_targets": [1, 4]},
        {"worlds": STUDY["worlds"] + 2, "hypotheses": second},
    ]
    (said,) = versions(tmp_path, *drafts, {"kl_targets": []})
    assert said == (
        "drafts of the study differ (git log -p studies/credit.yaml): "
        f"worlds {STUDY['worlds'] + 2} or {STUDY['worlds'] + 1}, now {STUDY['worlds']}; kl_targets [1, 4], now none; "
        f"primary hypothesis {OTHERS[0]}, now {FIRST}; hypotheses 'gone' dropped; hypotheses '{FIRST}' changed"
    )


def test_the_page_and_the_state_have_the_note(tmp_path: Path) -> None:
    (said,) = versions(tmp_path, {"margin": 1.0}, {})
    assert load_study(tmp_path, tmp_path / FILE).notes == (said,)
    assert said in write_atlas(tmp_path, tmp_path / "report").read_text(encoding="utf-8")


def test_a_draft_that_is_no_mapping_says_nothing(tmp_path: Path) -> None:
    commit_study(tmp_path, STUDY)
    (tmp_path / FILE).write_text("rows: [\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "Half a file")
    assert versions(tmp_path, {}) == []


def test_a_shallow_clone_does_not_know_drafts(tmp_path: Path) -> None:
    commit_study(tmp_path / "whole", {**STUDY, "margin": 1.0})
    commit_study(tmp_path / "whole", STUDY)
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path / 'whole'}", "part")
    with pytest.raises(DataError, match="shallow"):
        draft_changes(tmp_path / "part", "credit")
