"""docs/quickstart.md as it stands: its commands in an empty folder and without the extras, with a tiny random model and
made-up pairs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_core.data.quarantine import Screening
from rlhf_core.data.schemas import record_type
from tasks.data_specs.pair_formats import read_pairs
from tests.small_repository import PROJECT, clean_environment
from tests.tiny_causal import save_chat

#: Python that hides what the extras install, as an environment without them does.
WITHOUT_EXTRAS = """
from importlib.machinery import PathFinder

HIDDEN = {
    "boto3", "dvc_s3", "flask_wtf", "lingua", "lm_eval", "prefect_docker",
    "prefect_kubernetes", "psycopg2", "textstat",
}
find_spec = PathFinder.find_spec
PathFinder.find_spec = staticmethod(
    lambda fullname, path=None, target=None: (
        None if fullname.partition(".")[0] in HIDDEN else find_spec(fullname, path, target)
    )
)
"""
DOCUMENT = PROJECT / "docs" / "quickstart.md"
#: Lines of one page.
MOST_LINES = 110


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def test_it_is_one_page() -> None:
    assert len(DOCUMENT.read_text(encoding="utf-8").splitlines()) <= MOST_LINES


def test_the_example_of_a_pair_is_one(tmp_path: Path) -> None:
    [example] = blocks("json")
    (tmp_path / "pairs.jsonl").write_text(example)
    lines = read_pairs(tmp_path / "pairs.jsonl", {})[1]
    assert len(Screening().apply(lines, record_type("preference"))[0]) == 1


def write_pairs(file: Path) -> None:
    """80 preference pairs, which the page leaves to the reader."""
    things = ("parcel", "invoice", "phone", "ticket", "refund", "book", "order", "lamp")
    faults = ("late", "lost", "broken", "wrong", "too small", "too big", "missing", "wet", "old", "blue")
    rows = [
        {
            "prompt": f"My {thing} is {fault}.",
            "chosen": f"Sorry that your {thing} is {fault}. I will send a new {thing}.",
            "rejected": f"Your {thing} is {fault}, yes.",
        }
        for thing, fault in itertools.product(things, faults)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.mark.platform
@pytest.mark.timeout(3600)
def test_its_commands_give_a_comparison(tmp_path: Path) -> None:
    [reward], [commands] = blocks("python"), blocks("bash")
    (tmp_path / "my_rewards.py").write_text(reward)
    write_pairs(tmp_path / "pairs.jsonl")
    save_chat(tmp_path / "my_model")
    program = tmp_path / "bin" / "rewardsmith"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -P -m tasks.command_line "$@"\n')
    program.chmod(0o755)
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(WITHOUT_EXTRAS)
    paths = f"{tmp_path / 'start'}:{PROJECT}"
    environment = clean_environment(PYTHONPATH=paths, OMP_NUM_THREADS="1", HF_HUB_OFFLINE="1", COLUMNS="100")
    environment |= {"PATH": f"{program.parent}:{environment['PATH']}", "CUDA_VISIBLE_DEVICES": ""}
    environment |= {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300"}
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=3500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "my-study" / "results" / "local" / "my-study" / "policy"
    for row in ("own", "learned", "both"):
        metrics = json.loads((results / row / "0" / "result" / "metrics.json").read_text())
        assert {"kl", "alpaca_tokens", "score/holistic"} <= set(metrics)
    for title in ("Own reward", "Learned reward", "Both, bounded"):
        assert title in done.stdout
    assert (tmp_path / "my-study" / "report" / "compare.html").exists()
    assert "8 rollouts of policy" in done.stdout
