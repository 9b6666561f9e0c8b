"""Every field of every kind of setting, broken in every way, is refused before anything runs, without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from rlhf_core.errors import RecipeError
from tasks import check
from tasks.graph.check import check_all, check_rows
from tasks.graph.declared import check_declared
from tasks.graph.matrix import HEADLINE_ROWS, build
from tasks.graph.rows import load_rows
from tasks.graph.scale import Scale
from tasks.params.scales import scale_entries
from tests.command_line import rewardsmith

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Returns the outcome of breaking settings, from one fresh process."""
    folder = tmp_path_factory.mktemp("refusals")
    code = "from tests.tasks.params.broken_settings import report; report()"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_every_broken_setting_is_refused(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["accepted"] == []


def test_a_refusal_names_the_file_the_field_and_the_value(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["unclear"] == []


def test_every_field_of_every_kind_was_broken(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["untouched"] == []
    assert int(outcomes["tried"][0]) > 1500


def test_nothing_heavy_was_imported_and_no_stage_ran(outcomes: dict[str, list[str]]) -> None:
    assert outcomes["heavy"] == []
    assert outcomes["written"] == []


#: The page of PAR's settings of PPO.
PAR_PPO = scale_entries(ROOT, "testbed", "policy")["par_ppo"].file.as_posix()
#: (page, entry, what it says instead, what the refusal says)
BY_COMMAND: list[tuple[str, str, dict[str, object], str]] = [
    ("par/rows.yaml", "vanilla", {"credit": "evensplit"}, "credit is 'evensplit'; did you mean 'even_split'?"),
    ("par/rows.yaml", "vanilla", {"credits": "last_token"}, "unknown setting 'credits'; did you mean 'credit'?"),
    ("par/rows.yaml", "vanilla", {"clamp": "ten"}, "clamp is 'ten'; it must be a number"),
    ("par/rows.yaml", "vanilla", {"weight": float("nan")}, "weight is nan; it must be a finite number"),
    ("par/rows.yaml", "vanilla", {"optimiser": {"kind": "grpo"}, "settings": "par_ppo"}, "group_size 5"),
    ("par/rows.yaml", "vanilla", {"lora": {"rank": 10**6}}, "lora.rank is 1000000; it must be from 1 to 65536"),
    ("par/rows.yaml", "vanilla", {"backbone": "gemma2-2bb"}, "unknown backbone 'gemma2-2bb'"),
    ("par/reward_models.yaml", "standard", {"aggregation": "meen"}, "did you mean 'mean'?"),
    ("scales/testbed/backbones.yaml", "gemma2-2b", {"precision": "fp16"}, "precision is 'fp16'"),
    (PAR_PPO.removeprefix("params/"), "par_ppo", {"prompt_limit": 10**6}, "prompt_limit is 1000000"),
]


def broken(tree: Path, page: str, entry: str, change: dict[str, object]) -> None:
    """Writes a copy of the project's settings with some of one entry changed."""
    shutil.copytree(ROOT / "params", tree / "params")
    shutil.copyfile(ROOT / "params.yaml", tree / "params.yaml")
    file = tree / "params" / page
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content[entry] = {**content[entry], **change}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")


@pytest.mark.parametrize(("page", "entry", "change", "message"), BY_COMMAND, ids=[case[3] for case in BY_COMMAND])
def test_a_plan_refuses(tmp_path: Path, page: str, entry: str, change: dict[str, object], message: str) -> None:
    broken(tmp_path, page, entry, change)
    done = rewardsmith("plan", "par", "vanilla", root=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert f"params/{page}:{entry}" in done.stderr
    assert not (tmp_path / "dvc.yaml").exists(), "nothing is written before the settings are valid"


def test_a_plan_in_a_process_of_its_own_refuses_within_seconds(tmp_path: Path) -> None:
    page, entry, change, message = BY_COMMAND[0]
    broken(tmp_path, page, entry, change)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "tasks.command_line", "plan", "par", "vanilla"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2, done.stdout + done.stderr
    assert message in done.stderr
    assert time.monotonic() - began < 60


def test_a_row_that_is_not_valid_blocks_and_blames_no_other(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    file = tmp_path / "params" / "par" / "rows.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["minmax"]["clamp"] = "ten"
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    assert check_rows(tmp_path, "par", ["vanilla"], "testbed") == []
    assert [problem.partition(": ")[0] for problem in check_rows(tmp_path, "par", ["minmax"], "testbed")] == [
        "params/par/rows.yaml:minmax"
    ]
    stages = build(tmp_path)[HEADLINE_ROWS].stages
    assert "policy-par-vanilla-0" in stages
    assert "policy-par-minmax-0" not in stages


def test_a_row_that_is_not_valid_stops_its_own_stage_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    scale, rows = Scale(tmp_path, "testbed"), load_rows(tmp_path, "par")
    items = {name: scale.row(rows[name], 0)[-1] for name in ("minmax", "vanilla")}
    file = tmp_path / "params" / "par" / "rows.yaml"
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    content["minmax"]["lora"] = {"rank": 10**6}
    file.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    check.main(["--results", "results/testbed", "--paper", "par", "--out", "results/testbed/par/check"])
    assert "warning: params/par/rows.yaml:minmax: lora.rank is 1000000" in capsys.readouterr().err
    assert Path("results/testbed/par/check/result/checked.json").exists()
    check_declared(Path(), Path(items["vanilla"].out), items["vanilla"].arguments)
    with pytest.raises(RecipeError, match=r"params/par/rows\.yaml:minmax: lora\.rank is 1000000"):
        check_declared(Path(), Path(items["minmax"].out), items["minmax"].arguments)


def test_a_stage_refuses_inputs_that_its_row_does_not_ask_for(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copyfile(ROOT / "params.yaml", tmp_path / "params.yaml")
    scale, rows = Scale(tmp_path, "testbed"), load_rows(tmp_path, "par")
    item = scale.row(rows["vanilla"], 0)[-1]
    check_declared(tmp_path, Path(item.out), item.arguments)
    other = {**item.arguments, "reward_model": scale.row(rows["odin"], 0)[-1].arguments["reward_model"]}
    with pytest.raises(
        RecipeError, match=r"par/rows.yaml:vanilla: it asks for --reward-model .*standard/0/result, but"
    ):
        check_declared(tmp_path, Path(item.out), other)
    check_declared(tmp_path, tmp_path / "elsewhere", other)


def test_the_projects_own_settings_are_valid() -> None:
    check_all(ROOT)


def test_a_mistake_in_a_base_is_named_once(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "params", tmp_path / "params")
    shutil.copy(ROOT / "params.yaml", tmp_path)
    page = tmp_path / "params/demo/rows.yaml"
    page.write_text(page.read_text().replace("clamp: null", "clamp: 0"))
    found = check_rows(tmp_path, "demo", ["vanilla", "par", "segment"], "testbed")
    assert found == ["params/demo/rows.yaml:base: clamp is 0; it must be above 0"]
    page.write_text(page.read_text().replace("clamp: 0", "clamp: null").replace("vanilla:\n", "vanilla:\n  clamp: 0\n"))
    found = check_rows(tmp_path, "demo", ["vanilla", "par", "segment"], "testbed")
    assert found == ["params/demo/rows.yaml:vanilla: clamp is 0; it must be above 0"]
