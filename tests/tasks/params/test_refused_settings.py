"""Every wrong setting of the table is refused before anything runs, by its place, value and nearest name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.errors import DataError, RecipeError, hint
from tasks import check
from tasks.graph.check import check_all, check_declared, check_rows, refuse_rows
from tasks.graph.matrix import HEADLINE_ROWS, build
from tasks.graph.rows import read_rows
from tasks.graph.scale import Scale
from tests.tasks.params.conftest import Set
from tests.tasks.params.refused_settings import ACROSS, AMOUNTS, ONE_FIELD, ROWS, STAGES

ROOT = Path(__file__).resolve().parents[3]
HEAVY = ("torch", "transformers", "scipy", "sklearn", "pandas", "pandera", "datasets")


@pytest.mark.parametrize(
    ("page", "place", "value", "row", "parts"),
    [*ONE_FIELD, *ACROSS, *AMOUNTS],
    ids=[f"{case[1]}={case[2]}"[:60] for case in [*ONE_FIELD, *ACROSS, *AMOUNTS]],
)
def test_a_wrong_setting_is_refused_with_its_place(
    tree: Path, set_value: Set, page: str, place: str, value: Any, row: str, parts: tuple[str, ...]
) -> None:
    set_value(page, place, value)
    paper, _, name = row.partition("/")
    problems = check_rows(tree, paper, [name], "feedback" if paper == "tatoeba" else "testbed")
    assert any(all(part in problem for part in parts) for problem in problems), problems


def test_the_projects_own_settings_are_valid() -> None:
    check_all(ROOT)


def test_settings_are_refused_without_anything_heavy(tree: Path, set_value: Set) -> None:
    set_value(ROWS, "vanilla.credit", "evensplit")
    code = "import sys\nfrom tasks.command_line import app\n"
    code += "try:\n    app()\nexcept SystemExit as end:\n    print(end.code)\n"
    code += f"print([name for name in {HEAVY} if name in sys.modules])"
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    call = [sys.executable, "-c", code, "plan", "par", "vanilla"]
    done = subprocess.run(call, cwd=tree, env=environment, capture_output=True, text=True, timeout=240)
    assert "par/rows.yaml:vanilla: credit is 'evensplit'; did you mean 'even_split'?" in done.stderr
    assert done.stdout.splitlines()[-2:] == ["2", "[]"]
    assert not (tree / "dvc.yaml").exists(), "nothing is written before the settings are valid"


def test_a_row_that_is_not_valid_blocks_and_blames_no_other(
    tree: Path, set_value: Set, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scale, rows = Scale(tree, "testbed"), read_rows(tree, "par")[0]
    items = {name: scale.row(rows[name], 0)[-1] for name in ("minmax", "vanilla")}
    set_value(ROWS, "minmax.lora", {"rank": 10**6})
    assert check_rows(tree, "par", ["vanilla"], "testbed") == []
    (problem,) = check_rows(tree, "par", ["minmax"], "testbed")
    assert problem.startswith("params/par/rows.yaml:minmax: lora.rank is 1000000")
    stages = build(tree)[HEADLINE_ROWS].stages
    assert "policy-par-vanilla-0" in stages
    assert "policy-par-minmax-0" not in stages
    monkeypatch.chdir(tree)
    check.main(["--results", "results/testbed", "--paper", "par", "--out", "results/testbed/par/check"])
    assert f"warning: {problem}" in capsys.readouterr().err
    assert Path("results/testbed/par/check/result/checked.json").exists()
    check_declared(Path(), Path(items["vanilla"].out), items["vanilla"].arguments)
    with pytest.raises(RecipeError, match="minmax: lora"):
        check_declared(Path(), Path(items["minmax"].out), items["minmax"].arguments)


def test_a_stage_refuses_inputs_that_its_row_does_not_ask_for(tree: Path) -> None:
    scale, rows = Scale(tree, "testbed"), read_rows(tree, "par")[0]
    item = scale.row(rows["vanilla"], 0)[-1]
    check_declared(tree, Path(item.out), item.arguments)
    other = {**item.arguments, "reward_model": scale.row(rows["odin"], 0)[-1].arguments["reward_model"]}
    with pytest.raises(
        RecipeError, match=r"par/rows.yaml:vanilla: it asks for --reward-model .*standard/0/result, but"
    ):
        check_declared(tree, Path(item.out), other)
    check_declared(tree, tree / "elsewhere", other)


def test_a_mistake_in_a_base_is_named_once(tree: Path, set_value: Set) -> None:
    set_value("demo/rows.yaml", "base.clamp", 0)
    rows = ["vanilla", "par", "segment"]
    assert check_rows(tree, "demo", rows, "testbed") == ["params/demo/rows.yaml:base: clamp is 0; it must be above 0"]


@pytest.mark.parametrize("place", ["policy.yaml par_ppo.sampling.engine", "evaluation.yaml dialogue.engine"])
def test_an_engine_that_is_not_installed_is_refused_with_the_way_to_install_it(
    tree: Path, set_value: Set, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("REWARDSMITH_VLLM_PYTHON", "/nowhere/python")
    page, _, field = place.partition(" ")
    set_value(f"scales/testbed/{page}", field, "vllm")
    problems = check_rows(tree, "par", ["par"], "testbed")
    assert problems
    for problem in problems:
        assert page in problem
        assert "engine is 'vllm', but vLLM is not installed (REWARDSMITH_VLLM_PYTHON is '/nowhere/python'" in problem
        assert problem.endswith("use loop")


def test_a_demo_of_an_unknown_paper_is_named_with_the_nearest(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "params").symlink_to(tree / "params")
    (tmp_path / "params.yaml").write_text((tree / "params.yaml").read_text().replace("  par:", "  parr:"))
    with pytest.raises(RecipeError, match=r"params.yaml: demo_all names 'parr'.*did you mean 'par'"):
        build(tmp_path)


def test_what_no_row_reads_is_refused_by_the_check_of_all(tree: Path, set_value: Set) -> None:
    names = ("reward_model-prr", "entropies-phi3-mni", "pool-par", "rewardmodel")
    stages = yaml.safe_load((tree / "params" / STAGES).read_text())
    for name in names:
        set_value(STAGES, name, stages[name.partition("-")[0].replace("rewardmodel", "reward_model")])
    set_value("alarm/aspect_models.yaml", "factuality.density", "sentences")
    with pytest.raises(RecipeError) as refused:
        check_all(tree)
    for part in (
        "nothing reads 'reward_model-prr'; did you mean 'reward_",
        "nothing reads 'entropies-phi3-mni'; write them as 'entropies'",
        "nothing reads 'pool-par'; write them as 'pool'",
        "no stage 'rewardmodel' has settings; did you mean 'reward_model'",
        "aspect_models.yaml:factuality: density is 'sentences'; did you mean 'sentence'?",
    ):
        assert part in str(refused.value)


@pytest.mark.parametrize("page", ["par/rows_hh.yaml", "par/reward_models.yaml", "scales/testbed/backbones.yaml"])
def test_a_page_that_cannot_be_read_is_refused_by_name(tree: Path, set_value: Set, page: str) -> None:
    set_value(page, "base.x", 1)  # put back at the end
    (tree / "params" / page).write_text("base: [\n", encoding="utf-8")
    with pytest.raises((RecipeError, DataError), match=rf"{page}, line 2: not valid YAML"):
        refuse_rows(tree, "testbed", {"par": ["vanilla"]})


@pytest.mark.parametrize(
    ("word", "known", "near"),
    [
        ("PPO", ["ppo", "ppo_a2c"], "ppo"), ("bradley-terry", ["bradley_terry", "odin"], "bradley_terry"),
        ("EVENSPLIT", ["repeat", "even_split"], "even_split"), ("KL-Coef", ["clip", "kl_coef"], "kl_coef"),
        ("Z", ["none", "z"], "z"), ("qwen2.5", ["llama", "Qwen2.5"], "Qwen2.5"),
    ],
)  # fmt: skip
def test_capitals_and_separators_never_hide_the_nearest_name(word: str, known: list[str], near: str) -> None:
    assert hint(word, known) == f"; did you mean '{near}'?"
