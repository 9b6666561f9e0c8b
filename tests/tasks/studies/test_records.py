"""Records of a study's worlds: how they are made from results, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import DataError
from tasks.graph.items import Item
from tasks.running.artifacts import write_json
from tasks.studies.registration import Registration
from tasks.studies.verdicts import StudyFinding, load_study
from tasks.studies.world_record import Divergence, diverged_stages, row_run
from tests.tasks.studies.synthetic_study import STUDY, commit_study, edit, write_worlds

CELL = "short-sum"
METRIC = "win_rate_vs_sft"
STAGE = "pipelines/long/x/dvc.yaml:reward_model-segment-1"
LOST = f"stage {STAGE} failed with exit code 2: file a.jsonl: step 3: loss nan, gradient norm nan"


def rates(index: int, cell: str, row: str) -> float:
    return 50.0 + index + {"bandit": 0.0, "segment": 3.0, "token": 2.0 + index}[row]


@pytest.fixture
def own(tmp_path: Path) -> Registration:
    return commit_study(tmp_path, STUDY)


def findings(root: Path) -> dict[str, StudyFinding]:
    return {finding.name: finding for finding in load_study(root, root / "studies" / "credit.yaml").findings}


def edited(**changes: Any) -> Callable[[str], str]:
    return lambda record: json.dumps({**json.loads(record), **changes})


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        (lambda record: record[: len(record) // 2], None),
        (lambda record: "[]", None),
        (lambda record: "", None),
        (edited(world="x"), "world"),
        (edited(cells={CELL: []}), "cells.short-sum"),
        (edited(cells={}), "cells"),
    ],
)
def test_a_damaged_record_is_named_with_its_field(
    tmp_path: Path, own: Registration, fault: Callable[[str], str], field: str | None
) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    file.write_text(fault(file.read_text()))
    with pytest.raises(DataError) as refused:
        findings(tmp_path)
    assert refused.value.file == file.relative_to(tmp_path).as_posix()
    assert field is None or str(refused.value.field).startswith(field)


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"stopped": "no pair differs"}, "row 'token' of cell 'long-mean' stopped: no pair differs"),
        ({"metrics": {METRIC: "nan"}}, f"row 'token' of cell 'long-mean': {METRIC} is nan"),
        ({"metrics": {METRIC: "blank: 8 of 10"}}, f"row 'token' of cell 'long-mean': {METRIC} is blank: 8 of 10"),
        ({"metrics": {}}, f"row 'token' of cell 'long-mean' has no {METRIC}"),
        ({"metrics": {}, "diverged": "loss nan"}, f"diverged before an evaluation of {METRIC}: loss nan"),
    ],
)
def test_a_row_without_a_finite_number_leaves_its_hypothesis_without_an_effect(
    tmp_path: Path, own: Registration, run: dict[str, Any], said: str
) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    edit(
        file, lambda record: record["cells"]["long-mean"]["rows"].update(token={"seconds": 1.0, "result": None, **run})
    )
    found = findings(tmp_path)
    assert {name: finding.effect is not None for name, finding in found.items()} == {
        "grows": True, "beats": True, "token": False,
    }  # fmt: skip
    assert str(found["token"].why_no_effect).startswith(f"world {own.world_seed(1)}: ")
    assert said in str(found["token"].why_no_effect)


def test_a_row_that_diverged_scores_what_it_scored(tmp_path: Path, own: Registration) -> None:
    file = write_worlds(tmp_path, own, rates)[1]
    run = {"seconds": 9.0, "result": None, "diverged": "loss nan", "metrics": {METRIC: 20.0}, "scored_at": 16}
    edit(file, lambda record: record["cells"]["long-sum"]["rows"].update(segment=run))
    beats = findings(tmp_path)["beats"]
    assert beats.values[own.world_seed(1)] == pytest.approx((3 * 3.0 + (20.0 - 51.0)) / 4)
    (runs,) = [caveat.text for caveat in beats.caveats if caveat.about == "runs"]
    assert runs == f"runs: 'segment' diverged in 1 of 16 runs (world {own.world_seed(1)}, long-sum: loss nan)"


def test_a_stage_that_diverged_takes_those_that_read_it_along() -> None:
    failed = {STAGE: LOST, "p:sft-1": "stage p:sft-1 failed with exit code 1: MemoryError"}
    skipped = {"p:policy-a-1": f"reads from {STAGE}, which failed", "p:policy-b-1": "reads from p:sft-1, which failed"}
    reason = "file a.jsonl: step 3: loss nan, gradient norm nan"
    assert diverged_stages(failed, skipped, {STAGE: (4.5, 2)}) == {
        STAGE: Divergence(reason, 4.5, 2),
        "p:policy-a-1": Divergence(f"reward_model-segment-1 diverged: {reason}"),
    }


@pytest.mark.parametrize(
    ("evaluations", "found"),
    [([], {"metrics": {}}), ([{"step": 8, METRIC: 55.0}, {"step": 16, METRIC: 61.0}], {"metrics": {METRIC: 61.0}})],
)
def test_the_last_evaluation_of_a_row_that_diverged_counts(
    tmp_path: Path, evaluations: list[dict[str, float]], found: dict[str, Any]
) -> None:
    item = Item("policy", "bandit", {}, "results/bandit", "segment", 0)
    (tmp_path / item.out).mkdir(parents=True)
    write_json(tmp_path / item.out / "diverged.json", {"reason": "x", "evaluations": evaluations})
    made = row_run(tmp_path, item, Divergence("x", 3.0))
    assert {"metrics": made["metrics"], "diverged": made["diverged"]} == {**found, "diverged": "x"}
    assert made.get("scored_at") == (16 if evaluations else None)
