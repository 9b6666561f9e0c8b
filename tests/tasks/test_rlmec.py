"""The RLMEC rows at tiny size: sampled solutions, token rewards and rewrites in, a trained and measured policy out."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.data.solutions import LearntSolutions, read_samples
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.sampling import Sampling
from rlhf_core.recipe import parse_recipe
from rlhf_core.supervised.config import ImitationSettings
from tasks import normaliser, policy, prepare, reward_model, sft, solution_pairs, tokenizer
from tasks.graph.rows import row_addresses
from tasks.params.pages import read_settings
from tasks.params.policy import PolicyScale, reward_training
from tasks.params.settings import typed
from tasks.policy_run import optimising
from tasks.policy_run.solutions import SolutionFolders, fixed_samples, imitation_loss
from tasks.running.artifacts import digest, read_jsonl, write_jsonl
from tasks.running.checkpoints import SECONDS_VARIABLE
from tasks.running.loading import load_encoder
from tests.tasks.tiny_pipeline import SETTINGS, SUPERVISED

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = {
    "source": "testbed",
    "task": "mathematics",
    "template": "plain",
    "limits": {"prompt": 96, "total": 240},
    "difficulty": {"arithmetic": {"seen_start": [2, 9], "unseen_start": [3, 9], "operand": [1, 5]}},
    "rows": {"sft": 32, "sft_validation": 4, "questions": 12, "test": 3},
}
BACKBONE = {**SETTINGS["backbone"], "data": "mathematics", "tokenizer": "mathematics", "evaluation": "mathematics"}
EVALUATION = {"max_new_tokens": 8, "task_tokens": 8}
SIZES = {k: v for k, v in SETTINGS["ppo"]["optimiser"].items() if k != "critic_lr"}
#: Settings of each kind of row at tiny size.
SCALES: dict[str, dict[str, Any]] = {
    "rlmec": {"optimiser": {**SIZES, "iterations": 3}, "imitation": {"batch": 4}},
    "vanilla_ppo": {"optimiser": SIZES, "sampling": {"max_new_tokens": 6}},
    "ppo_a2c": {"optimiser": {**SIZES, "critic_lr": 1.0e-3}, "sampling": {"max_new_tokens": 6}},
    "dpo": {"optimiser": {**SUPERVISED, "learning_rate": 1.0e-3, "beta": 0.1}},
}
SCALES = {k: {**v, "checkpoints": 2, "checkpoint_prompts": 4, "rollout_samples": 2} for k, v in SCALES.items()}
LEARNED = {"optimiser": {**SUPERVISED, "batch": 8}, "checkpoints": 2, "checkpoint_prompts": 4}


def written(path: Path, values: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return str(path)


def line(**arguments: Any) -> list[str]:
    return [str(word) for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", value)]


def slipped(solution: str) -> str:
    """The solution with another answer and another last number before it."""
    *steps, last = solution.split("\n")
    wrong = str((int(re.findall(r"\d+", last)[-1]) + 3) % 10)
    return "\n".join([*steps[:-1], re.sub(r"\d+(?=\D*$)", wrong, steps[-1]), f"The answer is {wrong}."])


@dataclass(frozen=True)
class Made:
    """Results of the upstream stages, those of sampling and rewriting made by hand."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name / "result"

    def train(self, row: dict[str, Any], scale: dict[str, Any], out: Path, **given: Path) -> dict[str, Any]:
        """Runs the stage `policy`; returns its metrics."""
        files = {"row": written(out / "row.yaml", row), "scale": written(out / "scale.yaml", scale)}
        files["evaluation"] = str(self.root / "evaluation.yaml")
        upstream = {"data": self.data, "sft": self.sft, "samples": self.samples, "teacher": self.teacher, **given}
        policy.main(line(**files, **upstream, seed=0, out=out))
        metrics: dict[str, Any] = json.loads((out / "result" / "metrics.json").read_text())
        return metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    root = tmp_path_factory.mktemp("rlmec")
    found = Made(root)
    evaluation = written(root / "evaluation.yaml", EVALUATION)
    prepare.main(line(spec=written(root / "data.yaml", DATA), out=root / "data"))
    words = written(root / "tokenizer.yaml", {"vocabulary": 400, "full_byte_alphabet": True})
    tokenizer.main(line(spec=words, data=found.data, out=root / "tokenizer"))
    spec = written(root / "backbone.yaml", BACKBONE)
    upstream = {"data": found.data, "tokenizer": found.tokenizer}
    sft.main(line(spec=spec, evaluation=evaluation, **upstream, seed=0, out=root / "sft"))
    by_hand(found)
    solution_pairs.main(line(data=found.data, samples=found.samples, out=root / "pairs"))
    spec = written(root / "drm.yaml", read_settings(ROOT / "params/rlmec/reward_models.yaml:math"))
    scale = written(root / "training.yaml", SETTINGS["reward_model_scale"])
    reward_model.main(line(spec=spec, scale=scale, data=found.pairs, sft=found.sft, seed=0, out=root / "drm"))
    scale = written(root / "normaliser.yaml", SETTINGS["normaliser"])
    upstream = {"data": found.pairs, "sft": found.sft, "reward_model": found.drm}
    normaliser.main(line(scale=scale, **upstream, out=root / "normaliser"))
    return found


def by_hand(made: Made) -> None:
    """A correct and a wrong sample of each question, rewards of their tokens, and the true rewrites."""
    samples, rewrites, rewards = [], [], []
    encoder = load_encoder(made.data, made.sft / "model")
    for row in read_jsonl(made.data / "questions.jsonl"):
        for number, prediction in enumerate((row["solution"], slipped(row["solution"]))):
            common = {"id": f"{row['id']}-{number}", "question_id": row["id"], "prompt": row["prompt"]}
            common["prediction"] = prediction
            right = number == 0
            graded = {"solution": row["solution"], "answer": row["answer"], "extracted": None, "correct": right}
            samples.append(common | graded)
            ids = encoder.sequence(row, prediction).response
            pay = [0.5 if right else -0.1 * (i % 3 == 0) for i in range(len(ids))]
            rewards.append({**common, "token_ids": ids, "rewards": pay})
            if not right:
                facts = {"first_error_step": 0, "accepted": True, "reason": None, "edit_distance": 2}
                rewrites.append({**common, "rewrite": row["solution"], **facts})
    for folder, file, rows in (
        (made.samples, "samples.jsonl", samples),
        (made.teacher, "rewrites.jsonl", rewrites),
        (made.grm, "grm_rewrites.jsonl", rewrites),
        (made.grm, "token_rewards.jsonl", rewards),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        write_jsonl(folder / file, rows)


def committed(name: str) -> dict[str, Any]:
    return read_settings(row_addresses(ROOT, "rlmec")[name].under(ROOT))


def train_committed(made: Made, name: str, out: Path) -> dict[str, Any]:
    """The committed row, with what the graph would give it."""
    row = committed(name)
    kind = row["optimiser"]["kind"]
    given = {"reward_model": made.drm, "normaliser": made.normaliser} if "reward_model" in row else {}
    return made.train(row, SCALES.get(kind, LEARNED), out, token_rewards=made.grm, **given)


#: One row of each kind; the others differ in size, task or generative reward model.
KINDS = ("sft", "rft-td", "rft-rd", "coh", "dpo", "vanilla-ppo", "ppo-a2c", "rlmec")
ABLATIONS = ("without-tls", "without-tls-rl")
TRAINED = (*(f"math-{kind}" for kind in KINDS), *(f"math-13b-{kind}" for kind in ABLATIONS), "qa-figa")


@pytest.mark.parametrize("name", TRAINED)
def test_a_row_of_each_kind_trains_and_is_measured(made: Made, tmp_path: Path, name: str) -> None:
    """The committed rows, at a size of seconds."""
    metrics = train_committed(made, name, tmp_path)
    assert {"gsm8k", "math", "svamp", "mm", "seen", "unseen", "average", "kl"} <= set(metrics)
    history = read_jsonl(tmp_path / "result" / "history.jsonl")
    assert any("train_accuracy" in row for row in history)
    credited = (tmp_path / "result" / "credit.jsonl").exists()
    assert credited is (committed(name)["kind"] == "reward")
    assert ("credit_auc" in metrics) is credited


def test_rlmec_pays_what_the_generative_model_said_and_imitates(made: Made, tmp_path: Path) -> None:
    metrics = train_committed(made, "math-rlmec", tmp_path)
    assert metrics["samples"] == 24
    assert metrics["samples_correct"] == 0.5
    assert metrics["rewrites"] == 12
    history = read_jsonl(tmp_path / "result" / "history.jsonl")
    assert all(row["imitation_loss"] > 0 for row in history)
    rewards = {row["id"]: row["rewards"] for row in read_jsonl(made.grm / "token_rewards.jsonl")}
    for row in read_jsonl(tmp_path / "result" / "credit.jsonl"):
        assert row["credit"] == pytest.approx(rewards[row["id"]], abs=1e-6)


def test_a_policy_learns_from_the_solutions_that_its_scale_chooses_and_ends_after_its_passes(
    made: Made, tmp_path: Path
) -> None:
    sizes = {**SCALES["rlmec"]["optimiser"], "iterations": 50}
    chosen = {"failed": False, "most_right": 1, "passes": 2}
    scale = {**SCALES["rlmec"], "optimiser": sizes, "solutions": chosen}
    folder = tmp_path / "grm"
    shutil.copytree(made.grm, folder)
    rows = read_jsonl(made.grm / "grm_rewrites.jsonl")
    failed = [{**row, "accepted": False} if place < 4 else row for place, row in enumerate(rows)]
    write_jsonl(folder / "grm_rewrites.jsonl", failed)
    metrics = made.train(committed("math-rlmec"), scale, tmp_path, token_rewards=folder)
    right = {row["question_id"] for row in read_jsonl(made.samples / "samples.jsonl") if row["correct"]}
    assert metrics["rewrites"] == 8
    assert metrics["samples"] == metrics["rewrites"] + len(right) == 20
    assert metrics["samples_left_out"] == 4
    steps = [row["step"] for row in read_jsonl(tmp_path / "result" / "history.jsonl")]
    assert len(steps) == round(2 * 20 / sizes["rollout_batch"]) < sizes["iterations"]


def test_right_solutions_are_imitated_at_the_weight_of_unedited_tokens(made: Made) -> None:
    folders = SolutionFolders(made.samples, made.teacher, made.grm)
    encoder = load_encoder(made.data, made.sft / "model")
    sources = folders.sources([])
    _, alone = imitation_loss(ImitationSettings(batch=4), sources, encoder, 4, 0)
    _, both = imitation_loss(ImitationSettings(batch=4, right=True, phi=0.25), sources, encoder, 4, 0)
    added = both.weights[len(alone.weights) :]
    assert len(added) == sum(sample.correct for sample in sources.samples)
    assert {weight for row in added for weight in row} == {0.25}


def test_solutions_are_chosen_where_they_are_fixed_and_their_rewrites_known() -> None:
    sizes = {**SCALES["rlmec"]["optimiser"]}
    chosen = typed(PolicyScale, {"optimiser": sizes, "solutions": {"failed": False}}, "scale")
    row = {k: v for k, v in committed("math-13b-without-tls").items() if k != "imitation"}
    with pytest.raises(RecipeError, match=r"solutions.failed is false, but the row reads no generative reward model"):
        reward_training(parse_recipe(row), chosen, "row")
    vanilla = replace(chosen, sampling=Sampling(8), solutions=LearntSolutions(most_right=2))
    with pytest.raises(RecipeError, match="solutions chooses among fixed samples, but source is 'on_policy'"):
        reward_training(parse_recipe(committed("math-vanilla-ppo")), vanilla, "row")


def test_a_killed_run_goes_on_bitwise(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    train_committed(made, "math-rlmec", whole)
    monkeypatch.setenv(SECONDS_VARIABLE, "0")
    monkeypatch.chdir(tmp_path)

    class Killed(Exception):
        pass

    steps = []

    def interrupted(*arguments: Any, **options: Any) -> dict[str, float]:
        steps.append(1)
        if len(steps) == 3:
            raise Killed
        return {"train_accuracy": 0.0}

    with monkeypatch.context() as broken:
        broken.setattr(optimising, "question_accuracies", interrupted)
        with pytest.raises(Killed):
            train_committed(made, "math-rlmec", tmp_path / "part")
    train_committed(made, "math-rlmec", tmp_path / "part")
    for name in ("model/model.safetensors", "credit.jsonl", "generations.jsonl", "metrics.json"):
        assert digest(tmp_path / "part" / "result" / name) == digest(whole / "result" / name), name


def test_a_row_says_which_input_it_lacks(made: Made, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="learns from generated: give --token-rewards"):
        made.train(committed("math-rlmec"), SCALES["rlmec"], tmp_path)


def test_token_rewards_of_other_tokens_are_refused(made: Made, tmp_path: Path) -> None:
    folders = SolutionFolders(made.samples, made.teacher, made.grm)
    encoder = load_encoder(made.data, made.sft / "model")
    rewards = folders.rewards()
    name, other = list(rewards)[:2]
    with pytest.raises(DataError, match=f"the rewarded tokens of sample '{name}' spell"):
        fixed_samples(folders.sources([]), encoder, {**rewards, name: rewards[other]})
    with pytest.raises(DataError, match="has no token rewards"):
        fixed_samples(folders.sources([]), encoder, {name: rewards[name]})


def test_nothing_to_imitate_is_refused_and_no_reward_is_defined(made: Made, tmp_path: Path) -> None:
    """Identical rewrites teach nothing; a batch without any reward other than 0 leaves the policy alone."""
    folder = tmp_path / "grm"
    folder.mkdir()
    same = [{**row, "rewrite": row["prediction"]} for row in read_jsonl(made.teacher / "rewrites.jsonl")]
    write_jsonl(folder / "grm_rewrites.jsonl", same)
    unpaid = [{**row, "rewards": [0.0] * len(row["rewards"])} for row in read_jsonl(made.grm / "token_rewards.jsonl")]
    write_jsonl(folder / "token_rewards.jsonl", unpaid)
    with pytest.raises(DataError, match="nothing to imitate"):
        made.train(committed("math-rlmec"), SCALES["rlmec"], tmp_path / "a", token_rewards=folder)
    row = {k: v for k, v in committed("math-rlmec").items() if k != "imitation"}
    metrics = made.train(row, SCALES["rlmec"], tmp_path / "b", token_rewards=folder)
    assert metrics["kl"] == 0.0


@pytest.mark.parametrize("correct", [True, False])
def test_samples_of_one_sign_alone_train(made: Made, tmp_path: Path, correct: bool) -> None:
    folder = tmp_path / "samples"
    folder.mkdir()
    rows = [row for row in read_jsonl(made.samples / "samples.jsonl") if row["correct"] is correct]
    write_jsonl(folder / "samples.jsonl", rows)
    row = {k: v for k, v in committed("math-rlmec").items() if k != "imitation"}
    metrics = made.train(row, SCALES["rlmec"], tmp_path / "out", token_rewards=made.grm, samples=folder)
    assert metrics["samples_correct"] == float(correct)
    with pytest.raises(DataError, match="0 questions have both a correct and a wrong solution"):
        solution_pairs.split_pairs(read_samples(rows, "samples.jsonl"), "samples.jsonl")
