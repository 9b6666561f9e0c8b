"""Tuning and a study's worlds end to end, with tiny models: trials and rows share what is above them, a divergence is
an outcome, nothing runs twice, and a world has one trainer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from flows.study import study, train_worlds, tune, tune_rows
from rlhf_core.errors import RecipeError, RewardsmithError
from tasks.params.studies import read_study
from tasks.running.locks import only_one
from tasks.studies.records import is_number, read_record
from tasks.studies.trials import TuningPlan
from tests.small_repository import PROJECT, clean_environment, command, create, write_yaml

TINY = {"epochs": 1, "batch": 16, "microbatch": 16}
DATA = {"sft": 48, "sft_validation": 8, "tasks": 16, "prompts": 16, "preference_train": 32, "benchmark": 4}
DATA |= {"preference_validation": 16, "preference_ood": 8, "choices": 3, "arithmetic": 2, "functions": 1}
MODEL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PPO = {"iterations": 3, "rollout_batch": 16, "minibatch": 8, "microbatch": 8, "critic_warmup": 1}
TUNED: dict[str, Any] = {
    "title": "Tiny",
    "asks": "?",
    "main": "bandit",
    "rows": {"bandit": {"like": "segment/bandit"}, "dpo": {"like": "segment/dpo"}},
    "settings": {
        "data": {"dialogue": {"rows": DATA}},
        "backbones": {"phi3-mini": {"architecture": {**MODEL, "num_key_value_heads": 2}, "training": TINY}},
        "evaluation": {"dialogue": {"max_new_tokens": 12, "task_tokens": 8}},
        "policy": {
            "ppo": {"optimiser": PPO, "sampling": {"max_new_tokens": 12}, "checkpoints": 3, "checkpoint_prompts": 2},
            "dpo": {"optimiser": TINY},
        },
        "stages": {"reward_model": TINY, "normaliser": {"pairs": 24, "min_samples": 2}},
    },
    "hypotheses": {"a": {"says": "s", "row": "dpo"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}
SPACES = {
    "ppo": {"actor_lr": {"low": 1.0e-4, "high": 1.0e-3, "log": True}},
    "dpo": {"learning_rate": {"low": 1.0e18, "high": 1.0e20, "log": True}},
}
STUDY: dict[str, Any] = {
    **TUNED,
    "rows": {
        "bandit": {"like": "segment/bandit"},
        "wild": {"like": "segment/bandit", "optimiser": {"actor_lr": 1.0e15}},
        "dpo": {"like": "segment/dpo", "optimiser": {"learning_rate": 1.0e19}},
    },
    "hypotheses": {"a": {"says": "s", "row": "wild"}},
}
FILE = Path("reference") / "studies" / "tiny" / "pilot-100.json"


def committed(root: Path, content: dict[str, Any]) -> None:
    write_yaml(root / "studies" / "tiny.yaml", content)
    command("git", "add", "-A", root=root)
    command("git", "commit", "-qm", "A study", root=root)


def flow(root: Path, call: str, **choice: Any) -> str:
    """Returns what a call of the flows prints."""
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = clean_environment(PYTHONPATH=path, REWARDSMITH_PROGRESS="true", OMP_NUM_THREADS="1")
    line = [sys.executable, "-P", "-m", "flows", call, json.dumps({"name": "tiny", **choice})]
    done = subprocess.run(line, cwd=root, env=environment, capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> tuple[Path, str]:
    """A repository after two trials of each row, and what was printed; a world of the study has the trials' data, SFT
    and reward model."""
    root = create(tmp_path_factory.mktemp("study") / "tree")
    write_yaml(root / "params" / "tuning.yaml", SPACES)
    committed(root, TUNED)
    printed = flow(root, "tune", trials=2, seeds=[100], keep=True)
    shutil.copytree(root / ".work" / "tuning" / "tiny", root / ".work" / "studies" / "tiny")
    return root, printed


@pytest.mark.platform
@pytest.mark.timeout(1800)
def test_a_study_is_tuned_once(tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    root, printed = tuned
    assert printed.count(":sft-") == printed.count(":reward_model-") == 1
    assert "dpo: broken: no trial has a score" in printed
    record = json.loads((root / "reference" / "tuning" / "tiny.json").read_text())
    for trial in record["rows"]["bandit"]["trials"]:
        run = trial["runs"]["100"]["as-it-is"]
        assert 0 <= run["metric"] <= 100
        assert run["core_seconds"] > 0
        assert (run["training"]["updates"], run["training"]["rollouts"]) == (4, 48)
    for trial in record["rows"]["dpo"]["trials"]:
        assert trial["runs"]["100"]["as-it-is"]["diverged"].startswith("file results/")
        assert "gradient norm nan" in trial["runs"]["100"]["as-it-is"]["diverged"]

    monkeypatch.chdir(root)
    monkeypatch.setattr("flows.study.tune", lambda *_: pytest.fail("a trial would run again"))
    stages = {**TUNED["settings"]["stages"], "reward_model": {**TINY, "epochs": 3}}
    for content, refusal in (
        ({"settings": {**TUNED["settings"], "stages": stages}}, "was of other settings of the row, its data or what"),
        ({"metric": "ood_win_rate_vs_sft"}, "is win_rate_vs_sft, the study has ood_win_rate_vs_sft"),
        ({}, r"rows\.dpo of study 'tiny' has no best trial"),
    ):
        write_yaml(root / "studies" / "tiny.yaml", TUNED | content)
        with pytest.raises(RewardsmithError, match=refusal):
            tune_rows("tiny", trials=2, seeds=[100], write=True)
    assert not (root / ".work" / "tuning" / "tiny").exists()


@pytest.mark.platform
def test_a_world_keeps_its_results_where_a_row_diverges(
    tuned: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, _ = tuned
    committed(root, STUDY)
    monkeypatch.chdir(root)
    (root / "params" / "draft.yaml").write_text("{}\n")
    with pytest.raises(RewardsmithError, match=r"params/draft\.yaml differ from the commit"):
        study("tiny")
    with (
        only_one(root / ".work" / "studies" / "tiny" / "100.lock", "", ""),
        pytest.raises(RewardsmithError, match=r"world 100 of study 'tiny' is being trained \(process "),
    ):
        study("tiny", pilots=[100])

    flow(root, "study", pilots=[100])
    record = read_record(root, FILE)
    spec, (cell,) = read_study(root / "studies" / "tiny.yaml"), record["cells"]
    rows = record["cells"][cell]["rows"]
    assert all(is_number(rows[row]["metrics"][spec.metric]) for row in ("bandit", "wild"))
    assert rows["bandit"]["training"]["updates"] == 4
    assert "gradient norm" in rows["dpo"]["diverged"]
    assert rows["dpo"]["metrics"] == {}
    assert rows["wild"]["diverged"]
    assert "scored_at" in rows["wild"]


def test_a_study_that_was_changed_between_two_worlds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next world would be logged with the new file's digest, and trained by the old one."""
    root = create(tmp_path / "tree")
    committed(root, STUDY)
    trained = []

    def run_world(folder: Path, _: object, __: object, seed: int, **options: object) -> Path:
        trained.append(seed)
        committed(folder, {**STUDY, "title": "Another"})
        return FILE

    monkeypatch.setattr("flows.study.run_world", run_world)
    monkeypatch.setattr("flows.study.train_worlds", train_worlds.fn)
    monkeypatch.chdir(root)
    with pytest.raises(RecipeError, match=r"studies/tiny\.yaml was changed since this command began"):
        study("tiny", pilots=[100, 101])
    assert trained == [100]


def test_a_study_and_a_tuning_note_their_end_for_a_server_that_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, ended = create(tmp_path / "tree"), list[str]()
    committed(root, STUDY)
    monkeypatch.setattr("flows.study.ENDED_WELL", ended)
    monkeypatch.setattr("flows.study.run_world", lambda *_, **__: FILE)
    monkeypatch.setattr("flows.study.train_worlds", train_worlds.fn)
    monkeypatch.setattr("flows.study.missing_trials", lambda _: [])
    monkeypatch.chdir(root)
    assert study("tiny", pilots=[100]) == f"tiny: wrote {FILE}; commit them: git add reference/studies"
    tune.fn("tiny", cast(TuningPlan, None), {}, root)
    assert ended[0].startswith(f"tiny: wrote {FILE}")
    assert ended[1].startswith("tiny: every trial has run")


def test_pilots_that_have_records_are_not_called_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = create(tmp_path / "tree")
    committed(root, STUDY)
    (root / FILE).parent.mkdir(parents=True)
    (root / FILE).write_text("{}")
    monkeypatch.chdir(root)
    assert study("tiny", pilots=[100]) == "tiny: these pilots have their records"
