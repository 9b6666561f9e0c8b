"""Settings of generated data: dials, a calibrated annotator, and worlds of a number."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, fields
from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import RecipeError
from rlhf_core.testbed import Dials, World
from rlhf_core.testbed.oracle import OracleTeacher
from rlhf_core.typed import typed
from tasks.params.data import LongFormWorldSpec, data_spec
from tasks.prepare import make_sets, prepare
from tasks.running.loading import load_world

ROOT = Path(__file__).resolve().parents[3]
ROWS = {"sft": 20, "sft_validation": 5, "tasks": 5, "prompts": 5, "preference_train": 40, "preference_validation": 10}
ROWS |= {"preference_ood": 10, "benchmark": 5, "choices": 3, "arithmetic": 3, "functions": 3}
BASE = {
    "source": "testbed", "template": "plain", "limits": {"prompt": 160, "total": 288}, "world_seed": 0, "seed": 0,
    "annotator": {"temperature": 0.75}, "follow_up_share": 0.1, "baseline_quality": {}, "rows": ROWS,
}  # fmt: skip
LONG_FORM = {name: value for name, value in BASE.items() if name not in ("follow_up_share", "baseline_quality")}
LONG_FORM |= {"source": "testbed-longform", "limits": {"prompt": 144, "total": 256}}
LONG_FORM["rows"] = {name: 60 for name in ROWS if name.startswith(("sft", "prompts", "preference", "benchmark"))}
LONG_FORM["rows"] |= {"labelled_train": 60, "labelled_validation": 60}


def spec(**changes):
    return data_spec({**BASE, **changes}, "data.yaml")


def test_the_stages_read_the_dials_back(tmp_path):
    path = tmp_path / "data.yaml"
    path.write_text(
        yaml.safe_dump({**BASE, "dials": {"aggregation": "mean"}, "annotator": {"temperature": "calibrated"}})
    )
    (tmp_path / "out/result").mkdir(parents=True)
    prepare(path, tmp_path / "out", tmp_path / "out/result")
    facts = json.loads((tmp_path / "out/result/data.json").read_text())
    assert facts["world"] == {"version": 4, "seed": 0, "dials": {"aggregation": "mean"}}
    assert 0.1 < facts["annotator"]["temperature"] < 0.5
    world = load_world(tmp_path / "out/result")
    assert isinstance(world, World)
    assert world.dials == Dials(aggregation="mean")
    row = json.loads((tmp_path / "out/result/preference.train.jsonl").read_text().splitlines()[0])
    assert world.true_reward(row["meta"], row["chosen"]) == row["meta"]["true_chosen"]


def test_a_calibrated_annotator_keeps_the_ceiling_under_a_dial_and_a_flaw(tmp_path):
    rows = {**ROWS, "preference_train": 3000}
    for changes in ({"dials": {"aggregation": "mean"}}, {"annotator": {"length_bias": 2.0}}):
        annotator = {"temperature": "calibrated", "ceiling": 0.83, **changes.get("annotator", {})}
        facts = make_sets(spec(**{**changes, "annotator": annotator, "rows": rows}), tmp_path)[1]
        assert facts["bayes_ceiling"]["train"] == pytest.approx(0.83, abs=0.01)


def test_everything_follows_from_the_number_of_a_world(tmp_path):
    drawn = {number: make_sets(spec(world=number), tmp_path) for number in (0, 1, 2**40)}
    assert drawn[0] == make_sets(spec(), tmp_path)
    one, far = (drawn[number][0] for number in (1, 2**40))
    for name in ("sft", "prompts", "preference.train", "benchmarks/alpaca"):
        ids = [{row["id"] for row in sets[name]} for sets in (drawn[0][0], one, far)]
        assert not ids[0] & ids[1]
        assert not ids[1] & ids[2]
    numbered = spec(world=3)
    assert (numbered.world_seed, numbered.seed, numbered.annotator["seed"]) == (3000, 3000, 3000)
    assert json.loads(json.dumps(asdict(spec(world=2**40))))["world_seed"] == 1000 * 2**40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world": -1}, "world is -1"),
        ({"world": 2**40 + 1}, "world is"),
        ({"world": 1, "seed": 1000}, "seed is 1000; it must be from 0 to 999"),
        ({"annotator": {"temperature": "calibratd"}}, "did you mean 'calibrated'"),
        ({"annotator": {"temperature": 0.75, "ceiling": 0.8}}, "ceiling belongs to 'temperature: calibrated'"),
        ({"annotator": {"temperature": "calibrated", "ceiling": 0.4}}, "ceiling is 0.4"),
        ({"annotator": {"temperatur": 0.75}}, "did you mean 'temperature'"),
        ({"dials": {"clauses": 7}}, "dials.clauses is 7"),
    ],
)
def test_settings_that_no_world_has_are_refused(changes, message):
    with pytest.raises(RecipeError, match=message):
        spec(**changes)


def documented_settings() -> list[tuple[str, dict]]:
    """Settings of each dial in the table of docs/testbed.md, and the dial."""
    text = (ROOT / "docs" / "testbed.md").read_text(encoding="utf-8")
    table = text.partition("## Dials")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in table.splitlines() if line.startswith("| ")]
    return [(dial.strip(), yaml.safe_load(code)) for dial, cells in rows for code in re.findall(r"`(\w+: .*?)`", cells)]


@pytest.mark.parametrize(("dial", "values"), documented_settings(), ids=str)
def test_every_setting_in_the_documentation_is_accepted(dial, values):
    if dial == "teacher":
        assert OracleTeacher(**values["options"]).noise in (0.0, 0.5)
    elif "difficulty" in values:
        rows = {"sft": 5, "sft_validation": 2, "questions": 2, "test": 2}
        limits = {"prompt": 96, "total": 176}
        question = {"source": "testbed", "task": "mathematics", "template": "plain", "limits": limits, "rows": rows}
        assert data_spec({**question, **values}, "data.yaml").difficulty == values["difficulty"]
    elif "aspect_errors" in values:
        assert typed(LongFormWorldSpec, {**LONG_FORM, **values}, "data.yaml").aspect_errors == values["aspect_errors"]
    else:
        found = spec(**values)
        assert all(getattr(found, name) == value for name, value in values.items() if name != "dials")
        assert found.dials.moved().items() <= values.get("dials", {}).items()


def test_the_documentation_lists_every_dial():
    stated = {name for _, values in documented_settings() for name in values.get("dials", {})}
    assert stated == {field.name for field in fields(Dials)}
