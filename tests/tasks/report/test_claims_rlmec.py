"""Claims of RLMEC: verdicts are computed from the runs. All numbers are invented."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasks.report.claim_numbers import steps_to_answer
from tasks.report.claims import paper_claims_figure
from tasks.report.outputs import ResultTree
from tasks.running.artifacts import write_jsonl

QUESTIONS = 40
SEEDS = (0, 1, 2)


def write_run(results: Path, name: str, seed: int, right: int, kind: str = "policy", first_error: int = 1) -> None:
    """A run that answers about so many of the questions of each test set right."""
    right += seed * len(name) % 3
    folder = results / ("shared" if kind == "sft" else "rlmec") / kind / name / str(seed) / "result"
    folder.mkdir(parents=True)
    sets = ("ecqa", "qasc", "obqa", "arc") if name.replace("rlmec-", "").startswith("qa") else ("gsm8k", "svamp")
    rows = [
        {"benchmark": each, "id": str(n), "right": n < right, "extracted": "1", "steps": 3, "true_reward": None}
        | {"first_error": None if n < right else first_error}
        for each in sets
        for n in range(QUESTIONS)
    ]
    if kind == "sft":
        rows[-1]["first_error"] = first_error + seed
    percent = 100 * right / QUESTIONS
    (folder / "metrics.json").write_text(json.dumps({**dict.fromkeys(sets, percent), "average": percent}))
    write_jsonl(folder / "generations.jsonl", rows)


def verdicts(results: Path, seeds: tuple[int, ...] = SEEDS) -> dict[str, str]:
    (block,) = paper_claims_figure("rlmec", ResultTree(results, seeds)).blocks
    return {row["text"]: row["verdict"] for row in block["rows"]}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Supervision from coarse to fine on both tasks, over three seeds; DPO does harm everywhere."""
    for seed in SEEDS:
        for task in ("qa", "math"):
            write_run(tmp_path, f"rlmec-{task}", seed, 15, "sft", first_error=0)
            for method, right in (("vanilla-ppo", 10), ("ppo-a2c", 20), ("rlmec", 35), ("dpo", 3)):
                write_run(tmp_path, f"{task}-{method}", seed, right)
    return tmp_path


def test_verdicts_follow_the_runs(results: Path) -> None:
    found = verdicts(results)
    assert found["The finer the supervision, the better: vanilla PPO, PPO A2C, RLMEC"] == "confirmed"
    assert found["DPO helps on question answering and harms on mathematics"] == "contradicted"
    assert found["RLMEC outperforms the other methods on the average of both tasks"] == "undecided", "most were not run"
    assert found["Without imitation all tasks lose"] == "not run"
    assert found["After RLMEC the first error appears later"] == "confirmed"


def test_one_seed_decides_nothing(results: Path) -> None:
    assert set(verdicts(results, (0,)).values()) == {"undecided", "not run"}


def test_rewrites_are_compared_with_the_teachers(tmp_path: Path) -> None:
    metrics = {"edit_distance": 3.0, "teacher_edit_distance": 4.0, "rewrite_accuracy": 0.9}
    for seed in SEEDS:
        for place, values in (
            ("rlmec/generative_reward_model/qa", metrics | {"teacher_rewrite_accuracy": 0.9 + 0.01 * seed**2}),
            ("shared/teacher/rlmec-qa", {"ground_truth_edit_distance": 10.0 + 0.01 * seed}),
        ):
            folder = tmp_path / place / str(seed) / "result"
            folder.mkdir(parents=True)
            noisy = {name: value + 0.001 * seed * len(name) for name, value in values.items()}
            (folder / "metrics.json").write_text(json.dumps(noisy))
    found = verdicts(tmp_path)
    assert found["The reward model edits even less than its teacher"] == "confirmed"
    assert found["Its rewrites are right as often as the teacher's"] in ("confirmed", "undecided")


def test_steps_to_the_answer_are_those_of_wrong_solutions(tmp_path: Path) -> None:
    write_run(tmp_path, "math-rlmec", 0, QUESTIONS - 1, first_error=0)
    (run,) = ResultTree(tmp_path, (0,)).outputs("rlmec", "policy", "math-rlmec").values()
    assert steps_to_answer(run) == 2.0


def test_nothing_run_names_what_is_needed(tmp_path: Path) -> None:
    figure = paper_claims_figure("rlmec", ResultTree(tmp_path, (0,)))
    assert (figure.blocks, figure.missing) == ([], ["the rows of Table 3"])
