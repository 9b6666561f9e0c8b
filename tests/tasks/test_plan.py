"""The plan: what would run, why, what comes from the cache, and how long it should take."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.errors import RecipeError
from rlhf_core.published import printed_tables
from tasks.commands.run_app import print_plan
from tasks.dvc.pipelines import Request
from tasks.dvc.stale import read_state
from tasks.graph.names import DEMO_ALL, SUITE
from tasks.graph.stages import Stage, select
from tasks.graph.times import clock, expected_seconds, wall_seconds
from tasks.params.pages import read_settings
from tests import small_repository
from tests.small_repository import PROJECT, reward_row, set_entry, write_yaml

#: Of one stage of the small repository.
OUTPUTS = [f"results/testbed/segment/policy/bandit/0/{part}" for part in ("result", "record")]


def states(root: Path) -> dict[str, str]:
    return {address: stage.state for address, stage in read_state(root, ["dvc.yaml"]).items()}


def stage(address: str, *upstream: str, out: str = "results/testbed/segment/policy/x/0") -> Stage:
    kind, _, item = address.partition("-")
    name, _, seed = item.rpartition("-") if item[-1:].isdigit() else (item, "", "")
    return Stage(address, kind, "", name, int(seed) if seed else None, "", (f"{out}/result",), upstream, "run", (), {})


def chain() -> dict[str, Stage]:
    stages = [
        stage("prepare"),
        stage("sft-phi3-mini-0", "prepare"),
        stage("reward_model-segment-0", "sft-phi3-mini-0"),
        stage("policy-segment-0", "reward_model-segment-0"),
        stage("policy-bandit-1", "prepare"),
        stage("tables-segment", "policy-segment-0", "policy-bandit-1"),
    ]
    return {s.address: s for s in stages}


def test_a_row_is_selected_with_everything_above_it() -> None:
    chosen = select(chain(), rows=["segment"])
    assert list(chosen) == ["prepare", "sft-phi3-mini-0", "reward_model-segment-0", "policy-segment-0"]


def test_a_paper_is_selected_with_what_it_shares_and_no_more() -> None:
    other = [
        replace(stage("sft-llama-0", "prepare"), owner="shared"),
        replace(stage("policy-sentence-segment-0", "prepare"), name="segment", owner="sentence"),
        replace(
            stage("pipelines/testbed/sentence/dvc.yaml:tables-sentence", "policy-sentence-segment-0"), owner="sentence"
        ),
    ]
    known = {address: replace(s, owner="segment" if s.kind != "sft" else "shared") for address, s in chain().items()}
    known |= {s.address: s for s in other}
    mine = ["prepare", "policy-sentence-segment-0", "pipelines/testbed/sentence/dvc.yaml:tables-sentence"]
    assert list(select(known, papers=["sentence"])) == mine
    assert list(select(known, rows=["segment"], papers=["sentence"])) == mine[:2]
    assert not set(mine[1:]) & set(select(known, papers=["segment"]))


def test_unknown_row_and_seed_name_what_is_known() -> None:
    with pytest.raises(RecipeError, match=r"unknown row 'segmant'; did you mean 'segment'"):
        select(chain(), rows=["segmant"])
    with pytest.raises(RecipeError, match=r"no stage has seed 7; there are \[0, 1\]"):
        select(chain(), seeds=[7])
    other = replace(stage("policy-demo-vanilla-7", "prepare"), name="vanilla", seed=7, owner="demo")
    with pytest.raises(RecipeError, match=r"'segment' has no seed 7; there are \[0\].*suite: seeds"):
        select({**chain(), other.address: other}, rows=["segment"], seeds=[7])


@pytest.mark.parametrize(
    ("chosen", "whole"),
    [
        ({}, False),
        ({"seeds": [1]}, False),
        ({"rows": ["bandit"]}, False),
        ({"rows": ["bandit"], "seeds": [1]}, False),
        ({"rows": ["bandit"], "seeds": [2]}, True),
        ({"rows": ["bandit", "dpo"]}, True),
        ({"full": True}, True),
    ],
)
def test_a_row_that_the_demo_does_not_have_is_looked_for_in_the_full_matrix(
    tmp_path: Path, chosen: dict[str, Any], whole: bool
) -> None:
    root = small_repository.create(tmp_path)
    files = Request("segment", **chosen).files(root)
    assert ("pipelines/testbed/segment/dvc.yaml" in files) == whole


@pytest.mark.parametrize(
    ("rows", "seed", "said"),
    [
        ([], 2, r"no stage has seed 2; there are \[0, 1\]"),
        (["bandit"], 9, r"'bandit' has no seed 9; there are \[0, 1, 2\]"),
    ],
)
def test_a_seed_without_stages_is_refused_before_any_file_is_written(
    tmp_path: Path, rows: list[str], seed: int, said: str
) -> None:
    root = small_repository.create(tmp_path)
    settings = read_settings(root / "params.yaml")
    assert (settings["demo"]["segment"]["seeds"], settings["suite"]["seeds"]) == ([0, 1], [0, 1, 2])
    before = {path: path.stat().st_mtime_ns for path in root.rglob("dvc.yaml")}
    with pytest.raises(RecipeError, match=said):
        Request("segment", rows=tuple(rows), seeds=(seed,)).files(root)
    assert {path: path.stat().st_mtime_ns for path in root.rglob("dvc.yaml")} == before


def test_a_changed_row_is_in_the_graph_of_the_next_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = small_repository.create(tmp_path)
    first = Request(SUITE, full=True).files(root)
    assert Request("segment").files(root) == ["dvc.yaml"]
    before = {file: (root / file).read_text() for file in first}
    assert Request(SUITE, full=True).files(root) == first
    assert before == {file: (root / file).read_text() for file in first}
    assert capsys.readouterr().err == ""
    set_entry(root / "params/segment/rows.yaml", "new", reward_row("bandit"))
    params = read_settings(root / "params.yaml")
    write_yaml(root / "params.yaml", params | {"demo": {"segment": {"seeds": [0], "rows": ["new"]}}})
    Request(SUITE).files(root)
    assert "updated dvc.yaml: params/ changed" in capsys.readouterr().err
    assert "new" in (root / "pipelines/testbed/segment/dvc.yaml").read_text(), "a matrix that is there follows"


def test_expected_time_is_the_own_record_else_the_mean_of_the_kind(tmp_path: Path) -> None:
    for name, seconds in (("a", 10.0), ("b", 30.0)):
        record = tmp_path / f"results/testbed/segment/policy/{name}/0/record/record.json"
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"seconds": seconds}))
    known = stage("policy-a-0", out="results/testbed/segment/policy/a/0")
    new = stage("policy-c-0", out="results/testbed/segment/policy/c/0")
    other = stage("sft-m-0", out="results/testbed/shared/sft/m/0")
    expected = expected_seconds(tmp_path, [known, new, other])
    assert expected == {"policy-a-0": 10.0, "policy-c-0": 20.0, "sft-m-0": None}


@pytest.mark.parametrize(("slots", "seconds"), [(1, 200), (2, 130), (8, 130)])
def test_expected_time_is_along_the_longest_chain(slots: int, seconds: float) -> None:
    """10 + 20 + 30 + 70 s one after another; a policy of 50 s and tables of 20 s beside and after them."""
    stages = chain()
    times = dict(zip(stages, (10.0, 20.0, 30.0, 50.0, 70.0, 20.0), strict=True))
    assert wall_seconds(stages, times, slots) == seconds


@pytest.mark.parametrize(
    ("needs", "gpus", "slots"),
    [
        ({"cores": 1, "gpus": 0}, ["0"], 4),
        ({"cores": 2, "gpus": 0}, [], 2),
        ({"cores": 8, "gpus": 1}, ["0", "1"], 2),
        ({"cores": 32, "gpus": 8}, [str(i) for i in range(8)], 1),
    ],
)
def test_slots_follow_what_the_stages_need(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    needs: dict[str, int],
    gpus: list[str],
    slots: int,
) -> None:
    running = replace(stage("policy-a-0"), needs=needs)
    done = replace(stage("sft-m-0"), state="current", needs={"cores": 64, "gpus": 64})
    monkeypatch.setattr("tasks.running.machine.cores", lambda: 4)
    monkeypatch.setattr("tasks.running.machine.gpus", lambda: gpus)
    print_plan(tmp_path, {one.address: one for one in (running, done)}, {"policy-a-0": 60.0, "sft-m-0": None})
    said = capsys.readouterr().out
    assert f"about {clock(60)} on {slots} slot(s)" in said


@pytest.mark.platform
def test_the_plan_follows_what_a_finished_tree_still_has(finished_copy: Path) -> None:
    root, page = finished_copy, finished_copy / "params/segment/rows.yaml"
    assert set(states(root).values()) == {"current"}
    # DVC's own status would refuse: the outputs are locked for writing by a process that lives
    written = {str(root / path): {"write": {"pid": os.getppid(), "cmd": "dvc repro"}} for path in OUTPUTS}
    (root / ".dvc/tmp/rwlock").write_text(json.dumps(written))
    assert set(states(root).values()) == {"current"}
    before = page.read_text()
    set_entry(page, "bandit", small_repository.DEFAULT_ROWS["bandit"] | {"more": 1})
    found = read_state(root, ["dvc.yaml"])
    policies = ("policy-segment-bandit-0", "policy-segment-bandit-1")
    running = {address for address, s in found.items() if s.state == "run"}
    assert running == {"check-segment", *policies, "tables-segment"}
    assert found[policies[0]].reasons == ("input params/segment/rows.yaml:bandit modified",)
    assert found["tables-segment"].reasons == tuple(f"reads from {policy}" for policy in policies)
    page.write_text(before)
    shutil.rmtree(root / "results/testbed/segment")
    made = states(root)
    of_the_paper = ("policy-segment-segment-0", "reward_model-segment-segment-0", "tables-segment")
    assert {made[name] for name in of_the_paper} == {"restore"}
    assert made["sft-phi3-mini-0"] == "current"
    (root / "dvc.lock").unlink()
    shutil.rmtree(root / "results")
    assert set(states(root).values()) == {"restore"}, "from DVC's run cache"
    shutil.rmtree(root / ".dvc/cache")
    assert set(states(root).values()) == {"run"}


@pytest.mark.platform
def test_full_matrix_knows_the_stages_of_the_root_it_reads_from(finished_copy: Path) -> None:
    root = finished_copy
    files = Request("segment", full=True).files(root)
    found = read_state(root, files)
    dpo = found["pipelines/testbed/segment/dvc.yaml:policy-segment-dpo-0"]
    assert dpo.state == "run"
    assert dpo.reasons == ("it has not run here",)
    assert dpo.upstream == ("prepare-dialogue", "sft-phi3-mini-0", "check-segment")
    assert found["sft-phi3-mini-0"].state == "current"
    assert dpo.needs == {"cores": 1, "gpus": 0, "memory_gb": 2}


@pytest.mark.parametrize("scale", ["testbed", "reasoning"])
def test_the_suite_of_every_scale_is_the_matrix_of_the_papers_that_have_rows_there(scale: str, tmp_path: Path) -> None:
    for name in ("params", "params.yaml"):
        copy = shutil.copytree if (PROJECT / name).is_dir() else shutil.copy
        copy(PROJECT / name, tmp_path / name)
    files = Request(SUITE, scale, full=True).files(tmp_path)
    assert files[0] == "dvc.yaml" or scale != "testbed"
    there = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("pipelines/*/*/dvc.yaml")}
    assert set(files) - {"dvc.yaml"} == there
    assert all(Path(file).parts[1] == scale for file in there)
    assert there, "at least one paper has rows at each scale"
    known = {"shared", DEMO_ALL, *printed_tables.PAPERS}
    assert {Path(file).parts[2] for file in there} <= known, "other studies run by name"
    assert Request(SUITE, scale, full=True).papers(tmp_path) == printed_tables.PAPERS
