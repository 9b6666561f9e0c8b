"""Draws of data: one for each seed where the testbed generates it, one for all seeds where it is real."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from tasks.graph.items import data_name
from tasks.params.data import data_spec, drawn_by_seed, settings_of_world
from tasks.params.pages import Address
from tasks.prepare import make_sets, prepare
from tasks.report.outputs import ResultTree, of_one_seed
from tasks.running.artifacts import read_jsonl
from tests.tasks.golden_runs import SETTINGS

#: Files that tell draws apart: what is learnt by heart, asked and compared.
FILES = ("sft.jsonl", "prompts.jsonl", "preference.train.jsonl")
KINDS = ("dialogue", "longform", "translation", "questions")


def drawn(folder: Path, kind: str, *worlds: int) -> Path:
    """Runs `prepare` on small settings of a kind of data; returns the results of the draws' folder."""
    spec = folder / "data.yaml"
    spec.write_text(yaml.safe_dump(SETTINGS[f"data/{kind}"]), encoding="utf-8")
    out = folder / "shared" / "data" / kind
    for world in (None, *worlds):
        folder = out if world is None else out / str(world)
        (folder / "result").mkdir(parents=True)
        prepare(Address(spec), folder, folder / "result", world)
    return out


def digests(result: Path) -> dict[str, str]:
    there = [name for name in FILES if (result / name).exists()]
    return {name: hashlib.sha256((result / name).read_bytes()).hexdigest() for name in there}


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_have_other_facts_prompts_and_pairs(tmp_path: Path, kind: str) -> None:
    out = drawn(tmp_path, kind, 1, 2)
    first, *others = (digests(folder / "result") for folder in (out, out / "1", out / "2"))
    assert len(first) >= 2
    for name in first:
        assert len({first[name], *(other[name] for other in others)}) == 3, name
    prompts = [{row["prompt"] for row in read_jsonl(folder / "result/prompts.jsonl")} for folder in (out, out / "1")]
    assert prompts[0] != prompts[1]
    ids = [{row["id"] for row in read_jsonl(folder / "result/prompts.jsonl")} for folder in (out, out / "1")]
    assert not ids[0] & ids[1]


def test_a_stated_world_is_the_draw_of_all_seeds() -> None:
    values = {**SETTINGS["data/dialogue"], "world": 7}
    assert drawn_by_seed(SETTINGS["data/dialogue"])
    assert not drawn_by_seed(values)
    sets = [make_sets(data_spec(one, "data"), Path())[0]["prompts"] for one in (values, {**values, "world": 8})]
    assert sets[0] != sets[1]
    assert (
        make_sets(data_spec(settings_of_world(SETTINGS["data/dialogue"], 7, "data"), "data"), Path())[0]["prompts"]
        == sets[0]
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**SETTINGS["data/dialogue"], "world": 7}, "world is 7, but the stage is given --world 1"),
        ({"source": "directory", "preference": ["talks"]}, "the data is not generated, but the stage is given"),
        ({"source": "directory", "task": "mathematics"}, "the data is not generated, but the stage is given"),
    ],
)
def test_a_draw_that_the_settings_do_not_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        settings_of_world(values, 1, "data.yaml:own")


def test_a_seed_that_another_draw_has_too_is_refused() -> None:
    with pytest.raises(RecipeError, match="seed is 1000; it must be from 0 to 999, since world k has the seeds"):
        data_spec({**SETTINGS["data/dialogue"], "seed": 1000}, "data.yaml:own")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("results/testbed/shared/data/dialogue/result", "dialogue"),
        ("results/testbed/shared/data/dialogue/1/result", "dialogue/1"),
        ("/tree/shared/data/results/testbed/shared/data/data/12/result", "data/12"),
        ("somewhere/mine/result", "mine"),
    ],
)
def test_a_data_set_is_named_with_its_draw(path: str, name: str) -> None:
    assert data_name(Path(path)) == name


def test_tables_read_the_data_of_each_runs_own_seed(tmp_path: Path) -> None:
    out = drawn(tmp_path, "questions", 1)
    tree = ResultTree(tmp_path, (0, 1, 2))
    assert [tree.data("questions", seed) for seed in (0, 1)] == [out / "result", out / "1/result"]
    ids = [{row["id"] for row in tree.data_rows("questions", seed, "questions.jsonl")} for seed in (0, 1)]
    assert ids[0]
    assert ids[1]
    assert not ids[0] & ids[1]
    declared = ResultTree(tmp_path, (0, 1), frozenset([(out / "result").as_posix()]))
    assert declared.data("questions", 1) == out / "result", "real data: the graph declares one draw for all seeds"


def test_rows_are_shown_beside_each_other_at_one_seed(tmp_path: Path) -> None:
    for name, seeds in {"long": (0, 1, 2), "short": (1, 2)}.items():
        for seed in seeds:
            folder = tmp_path / "segment" / "policy" / name / str(seed) / "result"
            folder.mkdir(parents=True)
            (folder / "metrics.json").write_text("{}")
    tree = ResultTree(tmp_path, (0, 1, 2))
    runs = {name: tree.outputs("segment", "policy", name) for name in ("long", "short", "never")}
    assert {name: output.seed for name, output in of_one_seed(runs).items()} == {"long": 1, "short": 1}
    assert of_one_seed({"long": {0: runs["long"][0]}, "short": runs["short"]}) == {}
