"""The check of a study before anything runs, and metrics that its page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec, read_study
from tasks.studies.numbers import numbers_of, shown_values
from tasks.studies.plan import check_study

PROJECT = Path(__file__).parents[3]
STUDY: dict[str, Any] = {
    "title": "Length",
    "asks": "?",
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit", "optimiser": {"kl_coef": 0.4}, "fixed": ["kl_coef"]},
        "segment": {"like": "segment/segment"},
    },
    "dials": {
        "length": {
            "short": {},
            "long": {"data": {"dialogue": {"dials": {"clauses": 8}, "limits": {"total": 448}}}},
        }
    },
    "hypotheses": {"grows": {"says": "s", "row": "segment", "over": "length"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}


SEGMENT = STUDY["rows"]["segment"]


def study(**changes: Any) -> StudySpec:
    spec: StudySpec = typed(StudySpec, {**STUDY, **changes}, "studies/length.yaml")
    return spec


@pytest.mark.parametrize("name", sorted(path.stem for path in (PROJECT / "studies").glob("*.yaml")))
def test_every_study_can_be_run_and_tuned(name: str) -> None:
    """Its rows, levels and settings are those that stages take, and every row that trains has a search space."""
    assert check_study(PROJECT, name, read_study(PROJECT / "studies" / f"{name}.yaml"))["policy"] > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"shows": ["normalizer/bandit/floor_uses"]},
            r"shows names 'normalizer/bandit/floor_uses' of a stage that it has not.*normaliser/",
        ),
        (
            {"settings": {"policy": {"ppo": {"optimiser": {"iteratoins": 3}}}}},
            r"study 'length'.*iteratoins.*did you mean 'iterations'",
        ),
        (
            {"rows": {**STUDY["rows"], "segment": {"like": "sentence/best-of-n-token"}}},
            r"hypotheses\.grows compares 'bandit', which trains a policy, with 'segment', which does not",
        ),
        (
            {"rows": {**STUDY["rows"], "segment": {**SEGMENT, "optimiser": {"lam": 1}, "fixed": ["lam"]}}},
            r"rows\.segment\.fixed names 'lam', which tuning does not search",
        ),
        (
            {"settings": {"evaluation": {"dialogue": {"only": ["ood", "choices"]}}}},
            r"study 'length': the metric is 'win_rate_vs_sft', but .*evaluation\.yaml:dialogue of row 'bandit' has only"
            r" \['ood', 'choices'\]; add 'alpaca' to 'only'",
        ),
        (
            {"settings": {"evaluation": {"dialogue": {"only": ["alpaca", "choices"]}}}, "metric": "average"},
            r"the metric is 'average'.*add 'arithmetic' to 'only'",
        ),
        (
            {"rows": {**STUDY["rows"], "segment": {"like": "segment/bandit", "optimiser": {"kl_coef": 0.4}}}},
            r"hypotheses\.grows compares 'segment' with 'bandit', which has the same settings in cell 'short'",
        ),
    ],
)  # fmt: skip
def test_a_study_that_cannot_run_is_refused_before_it_does(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError) as refused:
        check_study(PROJECT, "length", study(**changes))
    assert re.search(said, str(refused.value)), str(refused.value)


def world(number: int, chosen: float) -> dict[str, Any]:
    """A record with a row that chooses the best of N beside a policy, and a selection above both."""
    rows = {
        "bandit": {"seconds": 1.0, "metrics": {"kl": 1.0 + number}},
        "segment": {"seconds": 1.0, "metrics": {"true/alpaca/4": 60.0 + number}},
    }
    above = {"selection/qa": {"seconds": 1.0, "metrics": {"chosen/factuality": chosen}}}
    cells = {cell: {"rows": dict(rows), "above": dict(above)} for cell in ("short", "long")}
    return {"study": "length", "kind": "verdict", "world": number, "machine": {"threads": 1}, "cells": cells}


def test_metrics_are_shown_of_the_rows_and_stages_that_have_them() -> None:
    records = {0: world(0, 1.0), 1: world(1, 0.0)}
    records[1]["cells"]["long"]["rows"]["bandit"] = {"seconds": 1.0, "stopped": "hacked"}
    records[1]["cells"]["short"]["above"] = records[0]["cells"]["short"]["above"] = {}
    numbers = numbers_of(study(), records)
    both = {0: 1.0, 1: 2.0}
    assert shown_values(study(), numbers, "kl") == {("bandit", "short"): (both, 0), ("bandit", "long"): ({0: 1.0}, 1)}
    assert [*shown_values(study(), numbers, "true/alpaca/4")] == [("segment", "short"), ("segment", "long")]
    chosen = shown_values(study(), numbers, "selection/qa/chosen/factuality")
    assert chosen == {("selection/qa", "long"): ({0: 1.0, 1: 0.0}, 0)}
