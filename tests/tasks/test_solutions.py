"""Sampled solutions in policy runs: which are learned from, what they pay, and the tokens that rewards lie on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.reasoning.model_tasks import ModelTasks
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.reasoning.templates import PAPER, SHORT
from rlhf_core.supervised.config import ImitationSettings
from tasks.generative_reward_model import realigned
from tasks.policy_run.solutions import SolutionFolders, imitation_loss
from tasks.running.artifacts import digest, read_json, read_jsonl
from tasks.running.loading import load_encoder
from tests.tasks.golden_runs import SETTINGS, SharedRuns
from tests.tasks.killing import killed_at_a_checkpoint
from tests.tasks.test_stage_refusals import edited

ROW, SCALE = "math-rlmec", SETTINGS["policy/rlmec"]


def encoder_of(golden: SharedRuns) -> Any:
    return load_encoder(golden.result("mathematics"), golden.result("reasoner") / "model")


def test_a_policy_learns_from_the_solutions_that_its_scale_chooses_and_ends_after_its_passes(
    golden: SharedRuns, tmp_path: Path
) -> None:
    sizes = {**SCALE["optimiser"], "iterations": 50, "epochs": 1}
    scale = {**SCALE, "optimiser": sizes, "solutions": {"failed": False, "most_right": 1, "passes": 2}}
    golden.made(ROW).run(ROW, scale=scale, out=tmp_path)
    metrics, samples = read_json(tmp_path / "result" / "metrics.json"), golden.read("samples", "samples.jsonl")
    rewrites = [row for row in golden.read("generative", "grm_rewrites.jsonl") if row["accepted"]]
    right = {row["question_id"] for row in samples if row["correct"]}
    assert metrics["samples"] == len(rewrites) + len(right) == len(samples) - metrics["samples_left_out"]
    steps = len(read_jsonl(tmp_path / "result" / "history.jsonl"))
    assert steps == max(1, round(2 * metrics["samples"] / sizes["rollout_batch"])) < 50


def test_right_solutions_are_imitated_at_the_weight_of_unedited_tokens(golden: SharedRuns) -> None:
    golden.made("generative")
    sources = SolutionFolders(*map(golden.result, ("samples", "teacher", "generative"))).sources([])
    encoder = encoder_of(golden)
    _, alone = imitation_loss(ImitationSettings(batch=4), sources, encoder, 4, 0)
    _, both = imitation_loss(ImitationSettings(batch=4, right=True, phi=0.25), sources, encoder, 4, 0)
    added = both.weights[len(alone.weights) :]
    assert len(added) == sum(row["correct"] for row in sources.samples)
    assert {weight for row in added for weight in row} == {0.25}


def test_a_batch_without_any_reward_leaves_the_policy_alone(golden: SharedRuns, tmp_path: Path) -> None:
    def unpaid(rows: list[Any]) -> list[Any]:
        return [row | {"rewards": [0.0] * len(row["rewards"])} for row in rows]

    alone = {name: value for name, value in SETTINGS[f"row/{ROW}"].items() if name != "imitation"}
    rewards = edited(golden.made(ROW), "generative", tmp_path, "token_rewards.jsonl", unpaid)
    golden.run(
        ROW,
        row=alone,
        token_rewards=rewards,
        out=tmp_path / "out",
    )
    assert read_json(tmp_path / "out" / "result" / "metrics.json")["kl"] == 0.0


def test_a_killed_run_goes_on_bitwise(golden: SharedRuns, tmp_path: Path) -> None:
    with killed_at_a_checkpoint(2):
        golden.made(ROW).run(ROW, out=tmp_path)
    golden.run(ROW, out=tmp_path)
    assert digest(tmp_path / "result") == digest(golden.result(ROW))


def test_rewards_of_another_tokenizer_lie_on_the_policys_tokens(golden: SharedRuns) -> None:
    """The same text cut into other tokens: as many rewards as tokens drawn, the sum of log-probabilities kept."""
    golden.made("reasoner")
    encoder, other = encoder_of(golden), encoder_of(golden)
    other.tokenizer = train_byte_level_bpe(["1 + 2 = 3."], 300)
    ids = [*encoder.tokenizer.encode("So 4 + 5 = 9.\nThe answer is 9.", add_special_tokens=False), encoder.eos_id]
    text = encoder.tokenizer.decode(ids, skip_special_tokens=True)
    model_ids = other.template.response_ids(other.tokenizer, text)
    logprobs = [-0.01 * (i + 1) for i in range(len(model_ids))]
    found = realigned(ids, encoder, model_ids, other, logprobs)
    assert len(found) == len(ids) < len(model_ids)
    assert sum(found) == pytest.approx(sum(logprobs))
    assert found[-1] == logprobs[-1]


def test_rewrites_follow_correct_prediction_and_prompts_hold_the_three_texts(golden: SharedRuns) -> None:
    question = golden.made("reasoner").read("mathematics", "questions.jsonl")[0]
    encoder, wrong = encoder_of(golden), WrongSolution("w", question, "Nothing.\nThe answer is 0.")
    for template, start in ((PAPER, "Below is an instruction"), (SHORT, "Make minimal modifications")):
        asked = template.rewriting(question["prompt"], question["solution"], wrong.prediction)
        assert asked.startswith(start)
        places = [asked.index(text) for text in (question["prompt"], question["solution"], wrong.prediction)]
        assert places == sorted(places)
    sequence = ModelTasks(encoder, SHORT).rewriting(wrong, question["solution"])
    assert encoder.tokenizer.decode(sequence.prompt).endswith("Correct prediction:")
    assert encoder.tokenizer.decode(sequence.response) == question["solution"] + "<|end|>"
