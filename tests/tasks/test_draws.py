"""Draws of data: one for each seed where the testbed generates it, one for all seeds where it is real."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import RecipeError
from tasks.graph.items import Graph, Item, data_name, result_of
from tasks.graph.matrix import build
from tasks.graph.rows import load_row, row_addresses
from tasks.graph.scale import Scale
from tasks.params.data import data_spec, drawn_by_seed, settings_of_world
from tasks.params.pages import Address
from tasks.params.settings import DEFAULT_SCALE
from tasks.prepare import make_sets, prepare
from tasks.report.outputs import ResultTree, of_one_seed
from tasks.running.artifacts import read_jsonl
from tasks.running.loading import load_world
from tests.tasks.golden_settings import DATA

ROOT = Path(__file__).resolve().parents[2]
DIGESTS = json.loads((ROOT / "reference/result_digests.json").read_text(encoding="utf-8"))["digests"]
#: Files that tell draws apart: what is learnt by heart, asked and compared.
FILES = ("sft.jsonl", "prompts.jsonl", "preference.train.jsonl")
KINDS = ("dialogue", "longform", "translation", "questions")


@pytest.fixture(scope="module")
def graphs() -> dict[Path, Graph]:
    return build(ROOT)


def drawn(folder: Path, kind: str, *worlds: int) -> Path:
    """Runs `prepare` on small settings of a kind of data; returns the results of the draws' folder."""
    spec = folder / "data.yaml"
    spec.write_text(yaml.safe_dump(DATA[f"data/{kind}"]), encoding="utf-8")
    out = folder / "shared" / "data" / kind
    prepare(Address(spec), out)
    for world in worlds:
        prepare(Address(spec), out / str(world), world)
    return out


def digests(result: Path) -> dict[str, str]:
    there = [name for name in FILES if (result / name).exists()]
    return {name: hashlib.sha256((result / name).read_bytes()).hexdigest() for name in there}


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_have_other_facts_prompts_and_pairs_and_seed_0_has_those_of_before(tmp_path: Path, kind: str) -> None:
    out = drawn(tmp_path, kind, 1, 2)
    first, *others = (digests(folder / "result") for folder in (out, out / "1", out / "2"))
    assert first.items() <= DIGESTS[kind].items()
    assert len(first) >= 2
    for name in first:
        assert len({first[name], *(other[name] for other in others)}) == 3, name
    prompts = [{row["prompt"] for row in read_jsonl(folder / "result/prompts.jsonl")} for folder in (out, out / "1")]
    assert prompts[0] != prompts[1]
    ids = [{row["id"] for row in read_jsonl(folder / "result/prompts.jsonl")} for folder in (out, out / "1")]
    assert not ids[0] & ids[1]


def test_the_facts_of_two_seeds_differ(tmp_path: Path) -> None:
    out = drawn(tmp_path, "dialogue", 1)
    worlds = [load_world(folder / "result") for folder in (out, out / "1")]
    assert worlds[0].knowledge.facts != worlds[1].knowledge.facts  # type: ignore[union-attr]


def scales(graphs: dict[Path, Graph]) -> dict[str, list[Item]]:
    """Returns the stages of every scale."""
    found: dict[str, list[Item]] = {}
    for made in graphs.values():
        found.setdefault(made.scale, []).extend(made.items())
    return found


def read_by(item: Item, makers: dict[str, Item]) -> Iterator[Item]:
    """Yields the stages whose results a stage reads."""
    values = [*item.arguments.values(), *item.after]
    for value in values:
        for one in value if isinstance(value, tuple) else (value,):
            if str(one) in makers:
                yield makers[str(one)]


def test_no_stage_of_a_seed_reads_a_stage_of_another_on_the_testbed(graphs: dict[Path, Graph]) -> None:
    items = scales(graphs)[DEFAULT_SCALE]
    makers = {result_of(item): item for item in items if item.module != "check"}
    seeded = [item for item in items if item.seed]
    assert {"prepare", "tokenizer", "segmenter", "sft", "reward_model", "policy"} <= {item.module for item in seeded}
    for item in seeded:
        assert {above.seed for above in read_by(item, makers)} <= {item.seed}, item.stage
    for item in items:
        if not item.seed and item.module != "check":
            assert not any(above.seed for above in read_by(item, makers)), item.stage


def test_real_data_is_one_draw_for_all_seeds(graphs: dict[Path, Graph]) -> None:
    for scale, items in scales(graphs).items():
        if scale != DEFAULT_SCALE:
            shared = [item for item in items if item.module in ("prepare", "tokenizer", "segmenter")]
            assert {item.seed for item in shared} == {None}, scale
    several = [item for item in scales(graphs)["paper"] if item.module == "policy" and item.owner == "alarm"]
    assert {item.seed for item in several} == {0, 1, 2}
    assert {item.arguments["data"] for item in several if item.name == "qa-alarm"} == {
        "results/paper/shared/data/longform/result"
    }


def test_stages_of_seed_0_are_named_as_if_there_were_no_other_seed() -> None:
    row = load_row(ROOT, "sentence", row_addresses(ROOT, "sentence")["sentence"])
    stages = {seed: Scale(ROOT, DEFAULT_SCALE).row(row, seed) for seed in (0, 1)}
    names = {seed: {item.stage for item in items} for seed, items in stages.items()}
    assert {"prepare-dialogue", "tokenizer-dialogue", "segmenter-sat-3l-dialogue"} <= names[0]
    assert {"prepare-dialogue-1", "tokenizer-dialogue-1", "segmenter-sat-3l-dialogue-1"} <= names[1]
    data = {seed: next(item for item in items if item.module == "prepare") for seed, items in stages.items()}
    assert "world" not in data[0].arguments
    assert data[1].arguments["world"] == 1
    assert data[0].arguments["spec"] == data[1].arguments["spec"]


def test_a_stated_world_is_the_draw_of_all_seeds() -> None:
    values = {**DATA["data/dialogue"], "world": 7}
    assert drawn_by_seed(DATA["data/dialogue"])
    assert not drawn_by_seed(values)
    sets = [make_sets(data_spec(one, "data"), Path())[0]["prompts"] for one in (values, {**values, "world": 8})]
    assert sets[0] != sets[1]
    assert (
        make_sets(data_spec(settings_of_world(DATA["data/dialogue"], 7, "data"), "data"), Path())[0]["prompts"]
        == sets[0]
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({**DATA["data/dialogue"], "world": 7}, "world is 7, but the stage is given --world 1"),
        ({"source": "directory", "preference": ["talks"]}, "the data is not generated, but the stage is given"),
        ({"source": "directory", "task": "mathematics"}, "the data is not generated, but the stage is given"),
    ],
)
def test_a_draw_that_the_settings_do_not_have_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        settings_of_world(values, 1, "data.yaml:own")


def test_a_seed_that_another_draw_has_too_is_refused() -> None:
    with pytest.raises(RecipeError, match="seed is 1000; it must be from 0 to 999, since world k has the seeds"):
        data_spec({**DATA["data/dialogue"], "seed": 1000}, "data.yaml:own")


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
