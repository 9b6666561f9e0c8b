"""Settings of a study: cells, weights of hypotheses, and what is refused before anything runs."""

from __future__ import annotations

import dataclasses
import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.params.pages import entries
from tasks.params.studies import PLAIN, Hypothesis, StudySpec

ROOT = Path(__file__).resolve().parents[3]

STUDY: dict[str, Any] = {
    "title": "Length and truth",
    "asks": "Do segment rewards help?",
    "main": "bandit",
    "rows": {"bandit": {"like": "segment/bandit"}, "segment": {"like": "segment/segment"}},
    "dials": {
        "length": {"short": {}, "middle": {}, "long": {"data": {"dialogue": {"seed": 3}}}},
        "truth": {"sum": {}, "mean": {"data": {"dialogue": {"follow_up_share": 0.2}}}},
    },
    "hypotheses": {
        "grows": {"says": "It grows", "row": "segment", "over": "length"},
        "mean": {"says": "It helps", "row": "segment", "at": {"truth": "mean"}},
    },
    "metric": "win_rate_vs_sft",
    "worlds": 8,
}


def study(**changes: Any) -> StudySpec:
    spec: StudySpec = typed(StudySpec, {**deepcopy(STUDY), **changes}, "studies/x.yaml")
    return spec


def test_a_cell_is_one_level_of_every_dial() -> None:
    assert list(study().cells) == [
        "short-sum", "short-mean", "middle-sum", "middle-mean", "long-sum", "long-mean",
    ]  # fmt: skip
    assert study(dials={}, hypotheses={"a": {"says": "s", "row": "segment"}}).cells == {PLAIN: {}}


def test_levels_are_laid_over_the_settings_of_all_cells() -> None:
    spec = study(settings={"data": {"dialogue": {"seed": 1, "rows": {"sft": 9}}}})
    made = spec.overlay({"length": "long", "truth": "mean"})
    assert made == {"data": {"dialogue": {"seed": 3, "rows": {"sft": 9}, "follow_up_share": 0.2}}}
    assert spec.overlay({"length": "short", "truth": "sum"})["data"]["dialogue"]["seed"] == 1


def test_a_slope_weighs_levels_and_averages_the_other_dials() -> None:
    spec = study()
    weights = spec.weighted_cells(spec.hypotheses["grows"])
    assert weights == {
        "short-sum": -0.25, "short-mean": -0.25, "middle-sum": 0.0, "middle-mean": 0.0,
        "long-sum": 0.25, "long-mean": 0.25,
    }  # fmt: skip
    value = {"short": 1.0, "middle": 3.0, "long": 5.0}
    assert sum(w * value[cell.split("-")[0]] for cell, w in weights.items()) == pytest.approx(2.0)


def test_a_difference_averages_over_the_cells_that_it_names() -> None:
    spec = study()
    third = pytest.approx(1 / 3)
    assert spec.weighted_cells(spec.hypotheses["mean"]) == dict.fromkeys(
        ["short-mean", "middle-mean", "long-mean"], third
    )


def test_a_row_is_trained_only_in_its_cells() -> None:
    rows = {**STUDY["rows"], "gold": {"like": "segment/segment", "only": {"length": ["short", "long"], "truth": "sum"}}}
    hypotheses = {"gold": {"says": "s", "row": "gold", "than": "segment", "over": "length"}}
    spec = study(rows=rows, hypotheses=hypotheses)
    assert spec.rows_of(spec.cells["middle-sum"]) == ["bandit", "segment"]
    assert spec.weighted_cells(spec.hypotheses["gold"]) == {"short-sum": -1.0, "long-sum": 1.0}


HYPOTHESIS = STUDY["hypotheses"]["grows"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrik": "x"}, "metric"),
        (
            {"metric": "win_rate_vs_stf"},
            "metric names 'win_rate_vs_stf', which no run measures; did you mean 'win_rate_vs_",
        ),
        ({"metric": "lc_win_rate_vs_sft"}, "metric names 'lc_win_rate_vs_sft', which no run measures"),
        ({"shows": ["kl", "lenght"]}, "shows names 'lenght', which no run measures"),
        ({"main": "bandot"}, "main names 'bandot'; did you mean 'bandit'"),
        ({"worlds": 1}, "worlds is 1"),
        ({"margin": 0}, "margin is 0"),
        ({"hypotheses": {}}, "state at least the primary one"),
        ({"rows": {**STUDY["rows"], "odd": {"like": "segment"}}}, "rows.odd: 'like' is 'segment'"),
        ({"rows": {**STUDY["rows"], "a.b": {"like": "segment/segment"}}}, "'a.b' is not a name"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "row": "bandit"}}}, "compared with itself"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "over": "lenght"}}}, "did you mean 'length'"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "at": {"truth": "meen"}}}}, "did you mean 'mean'"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "at": {"length": "long"}}}}, "'at' fixes dial 'length'"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "at": {"truth": ["sum", "meen"]}}}}, "did you mean 'mean'"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "at": {"truth": []}}}}, "at.truth is []; name one level, or several"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "at": {"truth": ["sum", "sum"]}}}}, "several different ones"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "kl": 2}}}, "kl is 2; it must be one of the study's kl_targets (empty)"),
        ({"hypotheses": {"a": {**HYPOTHESIS, "kl": 3}}, "kl_targets": [2, 4]}, "one of the study's kl_targets (2, 4)"),
        (
            {
                "dials": {"a": {"x": {}, "x-y": {}}, "b": {"y-z": {}, "z": {}}},
                "hypotheses": {"a": {"says": "s", "row": "segment"}},
            },
            "two cells have one name",
        ),
        ({"hypotheses": {"a": {**HYPOTHESIS, "side": "aside"}}}, "side is 'aside'"),
        ({"dials": {"length": {"short": {}}}}, "at least two"),
        ({"settings": {"dada": {"x": {}}}}, "did you mean 'data'"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(RecipeError, match=r"studies/x\.yaml") as refused:
        study(**changes)
    assert says in str(refused.value)


def test_the_study_of_the_documentation_is_one() -> None:
    """Its rows and reward models exist, and every field that the page explains is in it or has a default."""
    text = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    block = re.search(r"```yaml\n(# studies/my-study\.yaml\n.*?)```", text, re.DOTALL)
    assert block is not None
    spec: StudySpec = typed(StudySpec, yaml.safe_load(block[1]), "docs/studies.md")
    assert list(spec.cells) == ["short-sum", "short-mean", "long-sum", "long-mean"]
    assert all(spec.weighted_cells(hypothesis) for hypothesis in spec.hypotheses.values())
    for kind, named in (("rows", spec.rows), ("reward_models", spec.reward_models)):
        for entry in named.values():
            paper, name = entry["like"].split("/")
            assert name in entries(ROOT, Path("params") / paper, kind)
    explained = set(re.findall(r"^- `(\w+)`: ", text.split("## Registration")[0], re.MULTILINE))
    fields = {field.name for kind in (StudySpec, Hypothesis) for field in dataclasses.fields(kind)}
    assert explained <= fields
    assert {"over", "at", "side", "collapse", "margin", "kl_targets", "claim"} <= explained
