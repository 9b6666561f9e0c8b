"""A world's tree: the study's rows in a scale for each cell, drawn by one number."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec
from tasks.studies.tree import WorldTree, write_pages

PROJECT = Path(__file__).parents[3]
NUMBER = 123_456_789
STUDY = {
    "title": "Noise",
    "asks": "?",
    "main": "vanilla",
    "rows": {
        "vanilla": {"like": "par/vanilla", "evaluation": "hackability"},
        "segment": {"like": "segment/segment", "optimiser": {"kl_coef": 0.3}},
        "noisy": {"like": "par/par", "only": {"noise": "high"}},
        "marked": {"like": "segment/segment", "reward_model": "marked"},
    },
    "reward_models": {"marked": {"like": "segment/segment", "seed_offset": 7}},
    "dials": {"noise": {"low": {}, "high": {"data": {"dialogue": {"annotator": {"temperature": 1.5}}}}}},
    "settings": {"policy": {"ppo": {"optimiser": {"iterations": 3}, "checkpoints": 3}}},
    "hypotheses": {"a": {"says": "s", "row": "segment"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> WorldTree:
    spec: StudySpec = typed(StudySpec, STUDY, "studies/noise.yaml")
    made = WorldTree("noise", spec, NUMBER, tmp_path_factory.mktemp("tree"))
    write_pages(PROJECT, made)
    return made


def page(world: WorldTree, cell: str, kind: str) -> dict[str, dict[str, object]]:
    return dict(yaml.safe_load((world.tree / f"params/scales/{cell}/{kind}.yaml").read_text()))


def test_a_cell_differs_by_its_levels_alone(world: WorldTree) -> None:
    low, high = page(world, "low", "data"), page(world, "high", "data")
    assert {name for name in low if low[name] != high[name]} == {"dialogue"}
    assert low["dialogue"]["annotator"] == {"temperature": 0.75}
    assert high["dialogue"]["annotator"] == {"temperature": 1.5}
    assert page(world, "low", "policy")["ppo"]["optimiser"]["iterations"] == 3  # type: ignore[index]


def test_everything_in_a_world_is_drawn_by_its_number(world: WorldTree) -> None:
    assert {spec["world"] for spec in page(world, "low", "data").values()} == {NUMBER}
    seeds = {item.seed for cell in world.spec.cells for item in world.items(cell)}
    assert seeds == {NUMBER, None}


def test_rows_are_what_they_are_like_with_their_own_settings(world: WorldTree) -> None:
    rows = yaml.safe_load((world.tree / "params/segment/rows_noise.yaml").read_text())
    assert rows["noise-segment"]["optimiser"] == {"kind": "ppo", "value_clip": 0.25, "kl_coef": 0.3}
    assert rows["noise-marked"]["reward_model"] == "noise-marked"
    models = yaml.safe_load((world.tree / "params/segment/reward_models_noise.yaml").read_text())
    assert models["noise-marked"]["seed_offset"] == 7
    assert set(world.stages("low")) == {"vanilla", "segment", "marked"}
    assert set(world.stages("high")) == {"vanilla", "segment", "marked", "noisy"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rows": {**STUDY["rows"], "vanilla": {"like": "par/vanila"}}}, "did you mean 'vanilla'"),  # type: ignore[dict-item]
        ({"rows": {**STUDY["rows"], "vanilla": {"like": "paar/vanilla"}}}, "did you mean 'par'"),  # type: ignore[dict-item]
        ({"settings": {"data": {"dialog": {}}}}, "did you mean 'dialogue'"),
        ({"settings": {"data": {"dialogue": {"sead": 1}}}}, "did you mean 'seed'"),
    ],
)
def test_a_study_that_cannot_run_is_refused(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    spec: StudySpec = typed(StudySpec, {**STUDY, **changes}, "studies/noise.yaml")
    with pytest.raises(RecipeError) as refused:
        write_pages(PROJECT, WorldTree("noise", spec, NUMBER, tmp_path))
    assert says in str(refused.value)
