"""A study whose rows are compared with themselves: worlds of their own seeds, one SFT model for both runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.commands.study import print_study
from tasks.graph.items import result_of
from tasks.params.studies import StudySpec
from tasks.studies.registration import TWIN_APART, TWINS
from tasks.studies.tree import WorldTree, write_pages
from tasks.studies.twins import twin_tests
from tasks.studies.verdicts import StudyState, load_study
from tests.tasks.studies.synthetic_study import commit_study, write_worlds

PROJECT = Path(__file__).resolve().parents[3]
ROWS = ("first", "second")
STUDY: dict[str, Any] = {
    "title": "Twins",
    "asks": "Is a row as good as itself?",
    "main": "first",
    "rows": {
        "first": {"like": "segment/segment", "reward_model": "first"},
        "second": {"like": "segment/segment", "reward_model": "second", "twin": True},
    },
    "reward_models": {"first": {"like": "segment/segment"}, "second": {"like": "segment/segment"}},
    "hypotheses": {"alike": {"says": "The second run is better", "row": "second"}},
    "metric": "win_rate_vs_sft",
    "worlds": 3,
}  # fmt: skip


def spec(**changes: Any) -> StudySpec:
    return typed(StudySpec, {**STUDY, **changes}, "twins")


def test_twins_share_data_and_sft_model_and_nothing_that_is_trained_on_them(tmp_path: Path) -> None:
    world = WorldTree("twins", spec(), TWINS.start, tmp_path)
    write_pages(PROJECT, world)
    first, second = (world.stages("as-it-is")[row] for row in ("first", "second"))
    assert (first.seed, second.seed) == (TWINS.start, TWINS.start + TWIN_APART)
    shared = {name for name, value in first.arguments.items() if second.arguments.get(name) == value}
    assert {"data", "sft", "scale", "evaluation"} <= shared
    assert not {"row", "reward_model", "normaliser"} & shared
    made = [(item.module, item.seed) for item in world.items("as-it-is")]
    assert [seed for module, seed in made if module == "sft"] == [TWINS.start]
    assert [seed for module, seed in made if module == "prepare"] == [None]
    assert {seed for module, seed in made if module == "reward_model"} == {TWINS.start, TWINS.start + TWIN_APART}
    results = [result_of(item) for item in world.items("as-it-is")]
    assert len(results) == len({*results})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"worlds": 51}, "worlds is 51; a study of twins has at most 50"),
        ({"main": "second", "hypotheses": {"a": {"says": "b", "row": "first"}}}, "rows.second is the main row"),
        ({"rows": {**STUDY["rows"], "second": {"like": "a/b", "twin": "yes"}}}, r"rows.second.twin is 'yes'; it must"),
        ({"claim": {"paper": "segment", "id": "best", "tested_by": ["a"]}}, "it has no 'claim'"),
        ({"rows": {**STUDY["rows"], "second": {"like": "segment/token", "twin": True}}}, "a row with its twin"),
        ({"reward_models": {**STUDY["reward_models"], "second": {"like": "segment/token"}}}, "a row with its twin"),
        ({"rows": {**STUDY["rows"], "third": {"like": "segment/token"}},
          "hypotheses": {**STUDY["hypotheses"], "a": {"says": "b", "row": "third"}}}, "hypotheses.a: a study of twins"),
    ],
)  # fmt: skip
def test_wrong_twins_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        spec(**changes)


def complete(root: Path, deviation_of: Callable[[int], float], worlds: int = 48) -> StudyState:
    """A study of twins whose runs have a deviation by world."""
    generator = np.random.default_rng(5)
    drawn = {(index, row): generator.normal(60.0, deviation_of(index)) for index in range(48) for row in ROWS}
    own = commit_study(root, {**STUDY, "worlds": worlds}, "twins")
    write_worlds(root, own, lambda index, _cell, row: drawn[index, row], worlds=worlds)
    return load_study(root, root / "studies" / "twins.yaml")


def test_differences_as_large_as_those_before_them_pass(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = complete(tmp_path, lambda _: 4.0)
    (test,) = twin_tests(state)
    assert test.metric == "win_rate_vs_sft"
    assert not isinstance(test.calibration, str)
    assert len(test.calibration.p_values) == 40
    assert test.calibration.sound
    differences = [state.findings[0].values[TWINS.start + index] for index in range(48)]
    assert test.deviation == pytest.approx(np.sqrt(np.mean(np.square(differences)) / 2))
    known = np.sum(np.square(differences[:8])) / 8
    naive = [2 * stats.t.sf(abs(difference) / np.sqrt(known), 8) for difference in differences[8:]]
    assert test.calibration.p_values[0] == pytest.approx(naive[0]), "worlds in the order of their numbers"
    print_study(tmp_path, "twins")
    assert capsys.readouterr().out.splitlines()[-1].split()[:2] == ["win_rate_vs_sft", "40"]


def test_differences_that_are_larger_than_those_before_them_do_not_pass(tmp_path: Path) -> None:
    (test,) = twin_tests(complete(tmp_path, lambda index: 1.0 if index < 8 else 4.0))
    assert not isinstance(test.calibration, str)
    assert not test.calibration.sound
    assert test.texts[-1] == "yes"


def test_no_table_before_the_last_world(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state = complete(tmp_path, lambda _: 4.0, worlds=47)
    assert len(twin_tests(state)) == 1
    (tmp_path / "reference" / "studies" / "twins" / "246.json").unlink()
    assert twin_tests(load_study(tmp_path, tmp_path / "studies" / "twins.yaml")) == ()
    print_study(tmp_path, "twins")
    assert "46 of 47 worlds" in capsys.readouterr().out
