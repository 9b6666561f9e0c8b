"""A study's worlds end to end, with tiny models: what diverges is an outcome, and a world has one trainer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.params.studies import read_study
from tasks.running.exclusive import only_one
from tasks.studies.records import is_number, read_record
from tests.flows.test_tune import DATA, MODEL, PPO, TINY
from tests.small_repository import PROJECT, clean_environment, command, create, write_yaml

pytestmark = [pytest.mark.platform, pytest.mark.timeout(1800), pytest.mark.usefixtures("prefect_server")]
STUDY: dict[str, Any] = {
    "title": "Tiny",
    "asks": "?",
    "main": "bandit",
    "rows": {
        "bandit": {"like": "segment/bandit"},
        "wild": {"like": "segment/bandit", "optimiser": {"actor_lr": 1.0e15}},
        "dpo": {"like": "segment/dpo", "optimiser": {"learning_rate": 1.0e19}},
    },
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
    "hypotheses": {"a": {"says": "s", "row": "wild"}},
    "metric": "win_rate_vs_sft",
    "worlds": 2,
}
FILE = Path("reference") / "studies" / "tiny" / "pilot-100.json"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    made = create(tmp_path / "tree")
    write_yaml(made / "studies" / "tiny.yaml", STUDY)
    command("git", "add", "-A", root=made)
    command("git", "commit", "-qm", "A study", root=made)
    return made


def study(root: Path, **choice: Any) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    environment = clean_environment(PYTHONPATH=path, REWARDSMITH_PROGRESS="true", OMP_NUM_THREADS="1")
    call = [sys.executable, "-P", "-m", "flows", "study", json.dumps({"name": "tiny", **choice})]
    return subprocess.run(call, cwd=root, env=environment, capture_output=True, text=True, timeout=1700)


def test_a_world_keeps_its_results_where_a_row_diverges(root: Path) -> None:
    (root / "params" / "draft.yaml").write_text("{}\n")
    refused = study(root)
    assert refused.returncode == 2
    assert "params/draft.yaml differ from the commit" in refused.stderr

    with only_one(root / ".work" / "studies" / "tiny" / "100.lock", "", ""):
        busy = study(root, pilots=[100])
    assert busy.returncode == 2
    assert "world 100 of study 'tiny' is being trained (process " in busy.stderr

    done = study(root, pilots=[100])
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(root, FILE)
    spec, (cell,) = read_study(root / "studies" / "tiny.yaml"), record["cells"]
    rows = record["cells"][cell]["rows"]
    assert all(is_number(rows[row]["metrics"][spec.metric]) for row in ("bandit", "wild"))
    assert rows["bandit"]["training"]["updates"] == 4
    assert "gradient norm" in rows["dpo"]["diverged"]
    assert rows["dpo"]["metrics"] == {}
    assert rows["wild"]["diverged"]
    assert "scored_at" in rows["wild"]
