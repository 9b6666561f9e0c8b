"""Tuning end to end, with tiny models: trials share what is above them, divergence is a result, nothing runs twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.params.studies import read_study
from tests.small_repository import PROJECT, clean_environment, command, create, write_yaml

pytestmark = [pytest.mark.platform, pytest.mark.timeout(1800), pytest.mark.usefixtures("prefect_server")]
TINY = {"epochs": 1, "batch": 16, "microbatch": 16}
DATA = {"sft": 48, "sft_validation": 8, "tasks": 16, "prompts": 16, "preference_train": 32, "benchmark": 4}
DATA |= {"preference_validation": 16, "preference_ood": 8, "choices": 3, "arithmetic": 2, "functions": 1}
MODEL = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PPO = {"iterations": 3, "rollout_batch": 16, "minibatch": 8, "microbatch": 8, "critic_warmup": 1}
STUDY: dict[str, Any] = {
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


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = create(tmp_path / "tree")
    write_yaml(made / "params" / "tuning.yaml", SPACES)
    write_yaml(made / "studies" / "tiny.yaml", STUDY)
    command("git", "add", "-A", root=made)
    command("git", "commit", "-qm", "A study", root=made)
    return made


def tune(root: Path, study: str = "tiny", **choice: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = clean_environment(PYTHONPATH=path, REWARDSMITH_PROGRESS="true", OMP_NUM_THREADS="1")
    call = [sys.executable, "-P", "-m", "flows", "tune", json.dumps({"name": study, "trials": 2, **choice})]
    return subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, timeout=1700)


def test_a_study_is_tuned_once(root: Path) -> None:
    first = tune(root)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count(":sft-") == first.stdout.count(":reward_model-") == 1
    assert "dpo: broken: no trial has a score" in first.stdout
    file = root / "reference" / "tuning" / "tiny.json"
    record = json.loads(file.read_text())
    for trial in record["rows"]["bandit"]["trials"]:
        run = trial["runs"]["100"]["as-it-is"]
        assert 0 <= run["metric"] <= 100
        assert run["core_seconds"] > 0
        assert (run["training"]["updates"], run["training"]["rollouts"]) == (4, 48)
    for trial in record["rows"]["dpo"]["trials"]:
        assert trial["runs"]["100"]["as-it-is"]["diverged"].startswith("file results/")
        assert "gradient norm nan" in trial["runs"]["100"]["as-it-is"]["diverged"]
    assert not (root / ".work" / "tuning" / "tiny").exists()

    stages = {**STUDY["settings"]["stages"], "reward_model": {**TINY, "epochs": 3}}
    write_yaml(root / "studies" / "tiny.yaml", {**STUDY, "settings": {**STUDY["settings"], "stages": stages}})
    refused = tune(root)
    assert refused.returncode == 2
    assert "was of other settings of the row, its data or what it is trained from" in refused.stderr
    write_yaml(root / "studies" / "tiny.yaml", STUDY)

    again = tune(root, write=True)
    assert " ran in " in first.stdout
    assert " ran in " not in again.stdout, "nothing runs twice"
    assert again.returncode == 2
    assert "rows.dpo of study 'tiny' has no best trial" in again.stderr

    write_yaml(root / "studies" / "tiny.yaml", {**STUDY, "metric": "ood_win_rate_vs_sft"})
    other = tune(root)
    assert other.returncode == 2
    assert "is win_rate_vs_sft, the study has ood_win_rate_vs_sft" in other.stderr
    assert read_study(root / "studies" / "tiny.yaml").metric == "ood_win_rate_vs_sft"
