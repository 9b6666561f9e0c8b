"""Rows that diverge: what they scored counts, without an evaluation they have no score, other failures fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.params.studies import read_study
from tasks.studies.committed import read_records
from tasks.studies.divergence import Divergence, diverged_stages, last_evaluation
from tasks.studies.records import value_of
from tasks.studies.verdicts import load_study
from tests.tasks.studies.synthetic_study import STUDY, commit_study, edit, write_worlds

STAGE = "pipelines/long/x/dvc.yaml:reward_model-segment-1"
LOST = f"stage {STAGE} failed with exit code 2: file a.jsonl: step 3: loss nan, gradient norm nan"
METRIC = "win_rate_vs_sft"


def diverged(**more: Any) -> dict[str, Any]:
    return {"result": None, "environment": None, "seconds": 9.0, "diverged": "loss nan", "metrics": {}, **more}


def test_a_stage_that_diverged_takes_those_that_read_it_along() -> None:
    failed = {STAGE: LOST, "p:sft-1": "stage p:sft-1 failed with exit code 1: MemoryError"}
    skipped = {"p:policy-a-1": f"reads from {STAGE}, which failed", "p:policy-b-1": "reads from p:sft-1, which failed"}
    found = diverged_stages(failed, skipped, {STAGE: 4.5})
    reason = "file a.jsonl: step 3: loss nan, gradient norm nan"
    assert found == {
        STAGE: Divergence(reason, 4.5),
        "p:policy-a-1": Divergence(f"reward_model-segment-1 diverged: {reason}", 0.0),
    }


def test_the_last_evaluation_is_the_one_that_counts(tmp_path: Path) -> None:
    assert last_evaluation(tmp_path) is None
    for evaluations, last in (([], None), ([{"step": 8, METRIC: 55.0}, {"step": 16, METRIC: 61.0}], 61.0)):
        (tmp_path / "diverged.json").write_text(json.dumps({"reason": "x", "evaluations": evaluations}))
        found = last_evaluation(tmp_path)
        assert (None if found is None else found[METRIC]) == last


def test_a_row_that_diverged_scores_what_it_scored(tmp_path: Path) -> None:
    own = commit_study(tmp_path, STUDY)
    file = write_worlds(tmp_path, own, lambda i, c, r: 50.0 + i + (3.0 if r == "segment" else 0.0))[1]
    scored = diverged(metrics={METRIC: 20.0}, scored_at=16)
    edit(file, lambda record: record["cells"]["long-sum"]["rows"].update(segment=scored))
    state = load_study(tmp_path, tmp_path / "studies" / "credit.yaml")
    beats = next(finding for finding in state.findings if finding.name == "beats")
    assert beats.values[1] == pytest.approx((3 * 3.0 + (20.0 - 51.0)) / 4)
    where = f"world {own.world_seed(1)}, cell 'long-sum'"
    said = f"'segment' diverged in {where}, it scores its evaluation after step 16: loss nan"
    assert said in [caveat.text for caveat in beats.caveats]


def test_a_row_that_diverged_before_an_evaluation_has_no_score(tmp_path: Path) -> None:
    own = commit_study(tmp_path, STUDY)
    file = write_worlds(tmp_path, own, lambda i, c, r: 50.0 + i * len(r))[1]
    edit(file, lambda record: record["cells"]["long-mean"]["rows"].update(token=diverged()))
    record = read_records(tmp_path, own, read_study(tmp_path / "studies" / "credit.yaml")).committed[1]
    with pytest.raises(DataError, match=f"row 'token' of cell 'long-mean' diverged before an evaluation of {METRIC}"):
        value_of(record, "long-mean", "token", METRIC)
    state = load_study(tmp_path, tmp_path / "studies" / "credit.yaml")
    effects = {finding.name: finding.effect is not None for finding in state.findings}
    assert effects == {"grows": True, "beats": True, "token": False}, "other rows keep their numbers"
