"""Tuning: search spaces, points, trials' rows, records that go on, and the choice."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, NumericsError, RecipeError
from rlhf_core.typed import typed
from tasks.params.studies import StudySpec, read_study
from tasks.params.tuning import FILE, SearchRange, TuningSpec, tuning_spec
from tasks.studies.best_trials import TRIALS, tuned_rows, tuning_file, write_overrides
from tasks.studies.records import RECORDS
from tasks.studies.tree import WorldTree, write_pages
from tasks.studies.trials import (
    TuningPlan,
    pending,
    record_to_continue,
    search_points,
    trials_of,
    tuning_plan,
    write_tuning,
)
from tasks.studies.world_record import DIVERGED, settings_digests

PROJECT = Path(__file__).parents[3]
STUDY: dict[str, Any] = {
    "title": "Noise",
    "asks": "?",
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit", "optimiser": {"value_clip": 0.3}},
        "segment": {"like": "segment/segment"},
        "dpo": {"like": "segment/dpo", "only": {"noise": "low"}},
    },
    "dials": {"noise": {"low": {}, "high": {"data": {"dialogue": {"annotator": {"temperature": 1.5}}}}}},
    "hypotheses": {"a": {"says": "s", "row": "segment"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}


#: A row's field that tuning leaves its KL coefficient.
KL = {"fixed": ["kl_coef"]}


def study(**changes: Any) -> StudySpec:
    return typed(StudySpec, {**STUDY, **changes}, "studies/noise.yaml")


def plan(trials: int = 4, **changes: Any) -> TuningPlan:
    return tuning_plan(PROJECT, "noise", study(**changes), trials)


@pytest.mark.parametrize(
    ("ranges", "said"),
    [
        ({"actor_rl": {"low": 1e-4, "high": 1e-3}}, "actor_rl.*did you mean 'actor_lr'"),
        ({"actor_lr": {"low": 1e-3, "high": 1e-4}}, "low must be below high"),
        ({"actor_lr": {"low": 0.0, "high": 1e-4, "log": True}}, "a logarithmic range lies above 0"),
        ({"gamma": {"low": 0.5, "high": 1.5}}, "gamma is 1.5"),
        ({"epochs": {"low": 1, "high": 4}}, "epochs is 1.0"),
        ({"dpo_beta": {"low": 0.1, "high": 0.5}}, "does not read 'dpo_beta'"),
        ({}, "spaces.ppo is empty"),
    ],
)
def test_a_space_that_the_optimiser_cannot_have_is_refused(ranges: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        typed(TuningSpec, {"spaces": {"ppo": ranges}}, str(FILE))


def test_points_cover_the_space_evenly_and_more_trials_continue_them() -> None:
    space = {"actor_lr": SearchRange(1e-4, 1e-2, log=True), "clip": SearchRange(0.1, 0.5)}
    points = search_points(space, 16)
    rates = sorted(math.log10(point["actor_lr"]) for point in points)
    assert [math.floor((rate + 4) / 2 * 16) for rate in rates] == list(range(16))
    assert [math.floor((clip - 0.1) / 0.4 * 16) for clip in sorted(p["clip"] for p in points)] == list(range(16))
    assert search_points(space, 32)[:16] == points


def test_the_points_of_committed_trials_stay() -> None:
    searched = tuning_spec(PROJECT).spaces
    for file in (PROJECT / TRIALS).glob("*.json"):
        for made in json.loads(file.read_text())["rows"].values():
            points = search_points(searched[made["kind"]], len(made["trials"]))
            tried = [trial["point"] for trial in made["trials"]]
            assert [{name: point[name] for name in own} for point, own in zip(points, tried, strict=True)] == tried


def trial_rows(made: TuningPlan, *trials: tuple[str, int]) -> Mapping[str, Mapping[str, Any]]:
    return WorldTree("noise", made.spec, 100, Path(), made.points_of(trials)).rows


def test_rows_of_one_kind_are_tried_at_the_same_points_but_for_what_a_row_fixes() -> None:
    assert {row: own["kind"] for row, own in plan().stated.items()} == {"bandit": "ppo", "segment": "ppo", "dpo": "dpo"}
    rows = {**STUDY["rows"], "bandit": {"like": "segment/bandit", "optimiser": {"kl_coef": 0.4}, **KL}}
    made = plan(rows=rows)
    assert made.points["segment"] == plan().points["segment"]
    for number, point in enumerate(made.points["segment"]):
        others = {name: value for name, value in point.items() if name != "kl_coef"}
        assert made.points["bandit"][number] == others
        row = trial_rows(made, ("bandit", number))[f"bandit-t{number}"]
        assert row["optimiser"] == {"kl_coef": 0.4, **others}
    assert set(made.stated["bandit"]["space"]) == {"actor_lr", "critic_lr"}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({**KL}, r"rows\.bandit\.fixed names 'kl_coef', which rows\.bandit\.optimiser does not set; set it there"),
        ({"fixed": "kl_coef"}, r"rows\.bandit\.fixed is 'kl_coef'; it must be a list"),
        ({"fixed": ["clip"], "optimiser": {"clip": 0.1}}, r"fixed names 'clip', which tuning does not search"),
        (
            {"fixed": ["actor_lr", "critic_lr", "kl_coef"],
             "optimiser": {"actor_lr": 1e-3, "critic_lr": 1e-3, "kl_coef": 0.1}},
            "fixed has every setting that tuning searches",
        ),
    ],
)  # fmt: skip
def test_what_a_row_cannot_fix_is_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        plan(rows={**STUDY["rows"], "bandit": {"like": "segment/bandit", **row}})


def test_rows_are_tuned_in_the_cells_that_the_study_names() -> None:
    assert plan().spec.tuning_cells("bandit") == ["low", "high"]
    assert plan().spec.tuning_cells("dpo") == ["low"]
    assert plan(tuned_at=["low"]).spec.tuning_cells("bandit") == ["low"]
    with pytest.raises(RecipeError, match=r"rows\.dpo is in none of the cells of tuned_at"):
        plan(tuned_at=["high"])
    with pytest.raises(RecipeError, match="tuned_at names 'hihg'; did you mean 'high'"):
        study(tuned_at=["hihg"])


@pytest.fixture(scope="module")
def digests(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Digests of trials of a study that is changed in some way."""

    def made(number: int = 0, **changes: Any) -> dict[str, str]:
        own = plan(tuned_at=["low"], **changes)
        trials = own.points_of((row, number) for row in own.points)
        world = WorldTree("noise", own.spec, 100, tmp_path_factory.mktemp("tree"), trials)
        write_pages(PROJECT, world)
        assert {item.seed for item in world.stages("low").values()} == {100}
        return {world.trial_of[name][0]: digest for name, digest in settings_digests(world, "low").items()}

    return made


def test_trials_of_a_row_differ_by_their_points_alone(digests: Any) -> None:
    before = digests()
    assert set(before) == {"bandit", "segment", "dpo"}
    assert len(set(before.values())) == 3
    assert digests(number=3) == before


def test_a_world_of_the_study_has_the_digest_of_its_tuning(digests: Any, tmp_path: Path) -> None:
    """It leaves out the world's seed and what tuning chose, and nothing else."""
    rows = {
        name: {**row, "optimiser": {**row.get("optimiser", {}), "kl_coef": 9.0}} for name, row in STUDY["rows"].items()
    }
    chosen = {**rows, "dpo": STUDY["rows"]["dpo"]}
    world = WorldTree("noise", study(rows=chosen), 1_234_567, tmp_path)
    write_pages(PROJECT, world)
    made = settings_digests(world, "low")
    assert made == digests()
    fixed = {**chosen, "bandit": {**rows["bandit"], **KL}}
    write_pages(PROJECT, other := WorldTree("noise", study(rows=fixed), 1_234_567, tmp_path))
    assert settings_digests(other, "low")["bandit"] != made["bandit"]


def run(metric: float | None = None, **more: Any) -> dict[str, Any]:
    found = {"core_seconds": 10.0, "settings": "a", "commit": "b", **more}
    return found if metric is None else found | {"metric": metric, "sft": 50.0, "curve": more.get("curve", {})}


def filled(metrics: dict[str, list[float]], **changes: Any) -> dict[str, Any]:
    """A record in which each row's trials have these metrics with seeds 100 and 101, in every cell."""
    own = plan(trials=max(map(len, metrics.values())), **changes)
    rows: dict[str, Any] = {row: {**own.stated[row], "trials": []} for row in metrics}
    for row, values in metrics.items():
        for number, value in enumerate(values):
            runs = {str(seed): {cell: run(value) for cell in own.spec.tuning_cells(row)} for seed in (100, 101)}
            rows[row]["trials"].append({"point": own.points[row][number], "runs": runs})
    return {"study": "noise", "metric": "win_rate_vs_sft", "seeds": [100, 101], "rows": rows}


METRICS = {"bandit": [51.0, 55.0, 55.0, 40.0], "segment": [52.0, 61.0, 44.0, 60.0], "dpo": [48.0, 40.0, 45.0, 30.0]}


def test_a_finished_trial_is_not_run_again(tmp_path: Path) -> None:
    record = record_to_continue(tmp_path, plan(), [100])
    assert len(pending(record, 100, range(4))) == 12
    assert not tuning_file("noise").is_absolute()
    write_tuning(tmp_path, filled(METRICS))
    record = record_to_continue(tmp_path, plan(trials=8), [102])
    assert trials_of(record) == 8
    assert record["seeds"] == [100, 101, 102]
    assert pending(record, 100, range(8)) == [(row, n) for n in range(4, 8) for row in METRICS]
    assert len(pending(record, 102, range(8))) == 24


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"metric": "true_reward"}, "field 'metric': is win_rate_vs_sft, the study has true_reward"),
        ({"rows": {k: v for k, v in STUDY["rows"].items() if k != "dpo"}}, r"rows\.dpo.*no such row"),
        (
            {"rows": {**STUDY["rows"], "bandit": {**STUDY["rows"]["bandit"], "optimiser": {"kl_coef": 0.1}, **KL}}},
            r"rows\.bandit\.fixed.*is \[\], the study has \['kl_coef'\]",
        ),
    ],
)
def test_trials_of_another_study_are_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    write_tuning(tmp_path, filled(METRICS))
    with pytest.raises(DataError, match=said):
        record_to_continue(tmp_path, plan(**changes), [100])


def raised(message: str) -> str:
    """The failure of a stage as the scheduler words it."""
    return f"stage policy-x failed with exit code 2: {NumericsError(message)}"


@pytest.mark.parametrize(
    ("message", "diverged"),
    [
        ("step 4: {'kl': nan} not finite; lower the learning rate or check the reward", True),
        ("gradient norm is nan; lower the learning rate or check the reward", True),
        ("step 3: loss nan, gradient norm inf, rows [1, 2]...; lower the learning rate", True),
        ("the policy's log-probabilities are not finite while sampling; lower the learning rate", True),
        ("gate: component 'a' pays -1 above the gate, where it must not be negative", False),
        ("No space left on device", False),
        ("reward function own:odd: the reward of response 1 of the batch is not finite", True),
        ("reward function own:odd failed: ValueError: a score is not finite (line 3 of own.py: raise)", False),
        ("reward function own:odd returned list ['not finite']; it must be a tensor of numbers", False),
    ],
)
def test_a_divergence_is_told_from_other_failures(message: str, *, diverged: bool) -> None:
    assert bool(DIVERGED.search(raised(message))) == diverged


def changed(row: str, trial: int, seed: str, cell: str, made: dict[str, Any]) -> Any:
    """Changes a run."""
    return lambda record: record["rows"][row]["trials"][trial]["runs"][seed].update({cell: made})


def not_judged(record: dict[str, Any]) -> None:
    for trial in record["rows"]["dpo"]["trials"]:
        trial["runs"]["100"]["low"] = run(blank="0 of 10 judged pairs")


def better_before(record: dict[str, Any]) -> None:
    """Step 2 is best of the steps that both runs have."""
    for seed, rates in (("100", {"2": 49.0, "4": 56.0}), ("101", {"2": 53.0, "4": 40.0, "6": 90.0})):
        record["rows"]["dpo"]["trials"][0]["runs"][seed]["low"]["curve"] = rates


@pytest.mark.parametrize(
    ("change", "row", "found"),
    [
        (None, "segment", {"best": 1, "scores": (52.0, 61.0, 44.0, 60.0), "core_seconds": 160.0, "broken": False}),
        (None, "bandit", {"best": 1}),  # of equal ones the first
        (None, "dpo", {"best": 0, "broken": True, "flags": ["broken: 48 at its best, its SFT model has 50"]}),
        (changed("bandit", 2, "101", "high", run(55.5)), "bandit", {"best": 2}),
        (lambda record: record["rows"]["segment"]["trials"][3]["runs"].pop("101"), "segment",
         {"best": None, "missing": 1, "trials": 3, "broken": False, "flags": ["1 of 4 trials have not run"]}),
        (changed("segment", 1, "101", "high", run(diverged="kl is nan")), "segment",
         {"best": 3, "flags": ["trial 1 diverged: kl is nan"]}),
        # else a judge without readable verdicts would make a row's wins contradict nothing
        (not_judged, "dpo", {"broken": False, "flags": ["no trial has a score"]}),
        (better_before, "dpo", {"at_best": 51.0, "broken": False}),
    ],
)  # fmt: skip
def test_the_best_mean_over_seeds_and_cells_is_chosen(change: Any, row: str, found: dict[str, Any]) -> None:
    record = filled(METRICS)
    if change is not None:
        change(record)
    tuned = tuned_rows(record)[row]
    for name, value in found.items():
        own = getattr(tuned, name)
        assert {*value} <= {*own} if name == "flags" else own == value, (name, own)


TEXT = """\
# What this study is about
title: Noise
asks: '?'
main: bandit
rows:
  bandit: {like: segment/bandit, optimiser: {value_clip: 0.3}} # as printed
  segment: {like: segment/segment}
  dpo: {like: segment/dpo, only: {noise: low}}
dials:
  noise: {low: {}, high: {data: {dialogue: {annotator: {temperature: 1.5}}}}}
hypotheses:
  a: {says: s, row: segment}
metric: win_rate_vs_sft
worlds: 2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "studies" / "noise.yaml"
    made.parent.mkdir()
    made.write_text(TEXT)
    return made


def test_choices_are_written_into_the_study_and_its_comments_stay(file: Path, tmp_path: Path) -> None:
    rows = tuned_rows(filled(METRICS))
    write_overrides(tmp_path, file, rows)
    text = file.read_text()
    assert text.startswith("# What this study is about\n")
    assert "# as printed" in text
    spec, before = read_study(file), yaml.safe_load(TEXT)
    assert spec.rows["bandit"]["optimiser"] == {"value_clip": 0.3, **rows["bandit"].point}
    assert spec.rows["dpo"]["optimiser"] == rows["dpo"].point
    assert {**yaml.safe_load(text), "rows": before["rows"]} == before
    write_overrides(tmp_path, file, rows)
    assert file.read_text() == text, "the same choices again change nothing"
    assert tuning_plan(PROJECT, "noise", spec, 4).points == plan().points


def test_a_started_study_is_not_written(file: Path, tmp_path: Path) -> None:
    (tmp_path / RECORDS / "noise").mkdir(parents=True)
    (tmp_path / RECORDS / "noise" / "pilot-100.json").touch()
    write_overrides(tmp_path, file, tuned_rows(filled(METRICS)))
    written = file.read_text()
    (tmp_path / RECORDS / "noise" / "1234567.json").touch()
    with pytest.raises(
        RecipeError, match=r"has the record reference/studies/noise/1234567\.json; rows are tuned before"
    ):
        write_overrides(tmp_path, file, tuned_rows(filled(METRICS)))
    assert file.read_text() == written
