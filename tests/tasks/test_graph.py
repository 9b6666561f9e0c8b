"""The graph: what is trained once, what depends on what, and that the committed files are current."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError
from tasks import sft
from tasks.dvc.pipelines import Request
from tasks.graph import dvc_files as graph
from tasks.graph.check import check_all
from tasks.graph.names import SUITE
from tasks.params.pages import read_settings
from tests import small_repository
from tests.small_repository import command, reward_model, reward_row, scale_entry, set_entry, write_yaml

ROOT = Path(__file__).resolve().parents[2]
MIXED = {
    "title": "Two reward models",
    "kind": "reward",
    "backbone": "phi3-mini",
    "components": [
        {name: reward_row(model)[name] for name in ("reward_model", "readout", "credit")}
        for model in ("segment/segment", "style")
    ],
    "optimiser": {"kind": "ppo"},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return small_repository.create(tmp_path)


def refused(root: Path, message: str) -> None:
    """A row is refused with a message; the graph leaves it out, and other rows stay."""
    with pytest.raises(RecipeError, match=re.escape(message)):
        check_all(root)
    assert "policy-segment-bandit-0" in graph.build(root)[Path()].stages


def write_matrix(root: Path, paper: str = "segment") -> None:
    graph.write(root, graph.matrix_folders("testbed", paper))


def stages_of(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load((path / "dvc.yaml").read_text())["stages"]


def named(stages: Iterable[str], module: str) -> set[str]:
    """The stages of a module, without its name."""
    return {name.removeprefix(f"{module}-") for name in stages if name.startswith(f"{module}-")}


def test_committed_graph_files_are_current() -> None:
    assert graph.check_graph(ROOT) == [], "run `rewardsmith graph`"


def test_a_paper_is_in_the_demo_or_in_demo_all(root: Path) -> None:
    settings = read_settings(root / "params.yaml")
    write_yaml(root / "params.yaml", settings | {"demo_all": settings["demo"]})
    with pytest.raises(RecipeError, match="demo and demo_all both name 'segment'"):
        graph.build(root)


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ([], "reward_model"),
        (["segment"], "reward_model-segment"),
        (["segment", "segment-dialogue"], "reward_model-segment-dialogue"),
        (["segment-longform", "sentence-dialogue"], "reward_model"),
    ],
)
def test_a_papers_reward_models_have_settings_of_their_own_on_one_data_set_first(
    root: Path, there: list[str], taken: str
) -> None:
    for name in there:
        set_entry(
            root / "params/scales/testbed/stages.yaml", f"reward_model-{name}", scale_entry("stages", "reward_model")
        )
    models = [item for item in graph.build(root)[Path()].items() if item.module == "reward_model"]
    assert {item.arguments["scale"] for item in models} == {f"params/scales/testbed/stages.yaml:{taken}"}


def test_a_row_waits_for_the_check_of_its_paper_and_nothing_else_does(root: Path) -> None:
    stages = stages_of(root)
    check = "results/testbed/segment/check/result"
    assert stages["check-segment"]["outs"][0] == check
    assert {"params/segment/rows.yaml", "params/segment/reward_models.yaml"} < set(stages["check-segment"]["deps"])
    assert "params/scales/testbed/policy.yaml" in stages["check-segment"]["deps"]
    waiting = {name for name, stage in stages.items() if check in stage["deps"]}
    assert waiting == {f"policy-{name}" for name in named(stages, "policy")}


def test_version_is_read_without_importing(tmp_path: Path) -> None:
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "sft.py").write_text("import no_such_library\n\nVERSION: int = 7\n")
    assert graph.stage_version(tmp_path, "sft") == sft.VERSION, "a folder `tasks` of a user's own is not the package"
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "rewardsmith"\n')
    assert graph.stage_version(tmp_path, "sft") == 7
    assert graph.stage_version(tmp_path, "policy") == 1


def test_a_version_step_changes_the_graph(root: Path) -> None:
    assert graph.check_graph(root) == []
    (root / "tasks" / "policy.py").write_text("VERSION = 2\n")
    assert graph.check_graph(root) == [Path("dvc.yaml")]
    graph.update_graph(root)
    assert stages_of(root)["policy-segment-bandit-0"]["cmd"].endswith("--stage-version 2")


def test_a_reward_model_of_another_backbone_serves_where_both_have_one_tokenizer(root: Path) -> None:
    set_entry(root / "params/scales/testbed/backbones.yaml", "llama", small_repository.BACKBONE)
    set_entry(root / "params/segment/rows.yaml", "llama", reward_row("segment", backbone="llama"))
    item = graph.build(root)[Path("pipelines/testbed/segment")].stages["policy-segment-llama-0"]
    assert item.arguments["sft"] == "results/testbed/shared/sft/llama/0/result"
    assert item.arguments["reward_model"] == ("results/testbed/segment/reward_model/segment/0/result",)


def test_a_reward_model_of_another_tokenizer_is_refused(root: Path) -> None:
    scale = root / "params/scales/testbed"
    set_entry(scale / "tokenizers.yaml", "llama", {"source": "llama"})
    set_entry(scale / "backbones.yaml", "llama", {**small_repository.BACKBONE, "tokenizer": "llama"})
    set_entry(root / "params/segment/rows.yaml", "wrong", reward_row("segment", backbone="llama"))
    message = "'llama' but reward model 'segment' is of 'phi3-mini', and their tokenizers at scale testbed are 'llama'"
    refused(root, message)


def test_reference_rewards_are_of_the_rows_own_backbone(root: Path) -> None:
    set_entry(root / "params/scales/testbed/backbones.yaml", "llama", small_repository.BACKBONE)
    set_entry(root / "params/segment/rows.yaml", "wrong", reward_row("segment", "llama", shaping={"kind": "par"}))
    refused(root, "is of 'phi3-mini'; its shaping needs a reward model of the row's backbone")


def test_a_page_that_cannot_be_read_is_refused_and_files_stay_as_they_are(root: Path) -> None:
    graph.write(root)
    before = (root / "dvc.yaml").read_text()
    (root / "params/segment/rows_wrong.yaml").write_text("wrong: [reward\n")
    for update in (graph.update_graph, graph.check_graph):
        with pytest.raises(DataError, match=r"rows_wrong\.yaml, line 2: not valid YAML"):
            update(root)
    assert (root / "dvc.yaml").read_text() == before


def test_unknown_demo_row_is_refused(root: Path) -> None:
    settings = read_settings(root / "params.yaml")
    settings["demo"]["segment"]["rows"].append("bandti")
    write_yaml(root / "params.yaml", settings)
    message = r"^params.yaml: demo.segment.rows: unknown row 'bandti' of segment; did you mean 'bandit'"
    with pytest.raises(RecipeError, match=message):
        graph.build(root)
    with pytest.raises(RecipeError, match=message):
        Request(SUITE).refuse(root)


def test_a_row_may_read_several_reward_models_and_those_of_another_paper(root: Path) -> None:
    set_entry(root / "params/other/rows.yaml", "mixed", MIXED)
    set_entry(root / "params/other/reward_models.yaml", "style", reward_model("style"))
    write_matrix(root, "other")
    stages = stages_of(root / "pipelines/testbed/other")
    models = [
        f"results/testbed/{name}/0/result" for name in ("segment/reward_model/segment", "other/reward_model/style")
    ]
    assert f"--reward-model {' '.join(models)} --normaliser" in stages["policy-other-mixed-0"]["cmd"]
    assert named(stages, "reward_model") == {f"other-style-{seed}" for seed in (0, 1, 2)}
    assert "reward_model-segment-segment-2" in stages_of(root / "pipelines/testbed/shared")
    assert "params/segment/reward_models.yaml" in stages["check-other"]["deps"]
    outputs = [out for g in graph.build(root).values() for out in g.outputs()]
    assert len(outputs) == len(set(outputs))


def test_a_backbone_brings_its_own_data_and_tokenizer(root: Path) -> None:
    scale = root / "params/scales/testbed"
    set_entry(scale / "backbones.yaml", "llama", {**small_repository.BACKBONE, "tokenizer": "llama"})
    dpo = {**small_repository.DEFAULT_ROWS["dpo"], "backbone": "llama"}
    set_entry(root / "params/segment/rows.yaml", "llama-dpo", dpo)
    refused(root, "backbones.yaml:llama: tokenizer is 'llama', which no scale has; known: dialogue")
    set_entry(scale / "tokenizers.yaml", "llama", {"vocabulary": 512})
    write_matrix(root)
    stages = stages_of(root / "pipelines/testbed/shared")
    of_llama = {name for name in named(stages, "tokenizer") if name.startswith("llama")}
    assert of_llama == {"llama", "llama-1", "llama-2"}
    assert "--tokenizer results/testbed/shared/tokenizer/llama/result" in stages["sft-llama-0"]["cmd"]


def test_a_matrix_that_no_row_makes_is_refused(root: Path) -> None:
    with pytest.raises(RecipeError, match="no row of other has a backbone at scale testbed"):
        write_matrix(root, "other")


def test_files_that_nothing_gives_any_more_are_removed(root: Path) -> None:
    left = root / "pipelines/testbed/gone/dvc.yaml"
    write_yaml(left, {"stages": {}})
    write_yaml(left.with_name("graph.yaml"), {})  # of a tree from before
    assert graph.check_graph(root)
    graph.write(root)
    assert not list(left.parent.iterdir())


@pytest.mark.platform
def test_changing_one_row_reruns_that_row_only_and_dvc_shows_the_difference(finished_copy: Path) -> None:
    root = finished_copy
    (root / ".work/calls").unlink()
    row = root / "params/segment/rows.yaml"
    row.write_text(row.read_text().replace("0.25", "0.3"))
    command("dvc", "repro", "-q", root=root)
    ran = [line.split()[1] for line in (root / ".work/calls").read_text().splitlines()]
    policies = [f"results/testbed/segment/policy/segment/{seed}" for seed in (0, 1)]
    assert ran == ["results/testbed/segment/check", *policies, "results/testbed/segment/tables-demo"]
    assert "policy/segment/0/headline.json" in command("dvc", "metrics", "diff", root=root).stdout
    assert command("dvc", "plots", "show", "dvc.yaml", root=root).stdout.strip().endswith("index.html")


@pytest.mark.platform
def test_pipeline_below_the_root_shares_its_results(finished_copy: Path) -> None:
    root = finished_copy
    of_the_demo = {line.split()[1] for line in (root / ".work/calls").read_text().splitlines()}
    (root / ".work/calls").unlink()
    assert command("dvc", "status", root=root).stdout.strip().endswith("up to date.")
    write_matrix(root)
    command("dvc", "repro", "-q", "pipelines/testbed/segment/dvc.yaml", root=root)
    ran = [line.split()[1] for line in (root / ".work/calls").read_text().splitlines()]
    assert not [out for out in ran if out in of_the_demo and "/shared/" in out]
    assert "results/testbed/segment/policy/dpo/0" in ran
    assert (root / "pipelines/testbed/segment/dvc.lock").exists()
    assert command("dvc", "status", root=root).stdout.strip().endswith("up to date.")
