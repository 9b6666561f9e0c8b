"""From questions to token rewards at tiny size: samples, teacher, generative reward model, and what they refuse."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.data.tokenizers import train_byte_level_bpe
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.reasoning.model_tasks import ModelTasks
from rlhf_core.reasoning.rewriting import WrongSolution
from rlhf_core.reasoning.templates import PAPER, SHORT
from tasks import generative_reward_model, prepare, samples, sft, teacher, tokenizer
from tasks.generative_reward_model import realigned
from tasks.graph.results import STOPPED_FILE
from tasks.running.artifacts import digest, read_json, read_jsonl, write_jsonl
from tasks.running.loading import load_encoder
from tasks.samples import sample_row
from tests.tasks.tiny_pipeline import SETTINGS, SUPERVISED

DATA: dict[str, Any] = {
    "source": "testbed",
    "task": "mathematics",
    "template": "plain",
    "limits": {"prompt": 96, "total": 240},
    "difficulty": {"arithmetic": {"seen_start": [2, 9], "unseen_start": [3, 9], "operand": [1, 5]}},
    "rows": {"sft": 24, "sft_validation": 4, "questions": 6, "test": 2},
}
BACKBONE = {**SETTINGS["backbone"], "data": "mathematics", "tokenizer": "mathematics", "evaluation": "mathematics"}
EVALUATION = {"max_new_tokens": 8, "task_tokens": 8}
SAMPLES = {"samples": 2, "sampling": {"max_new_tokens": 12, "temperature": 0.7, "top_p": 0.95}}
TEACHER = {"kind": "oracle", "options": {"noise": 0.0}, "limits": {"most_tokens": 96}}
MODEL = {"title": "Generative reward model", "backbone": "rlmec-math"}
SCALE: dict[str, Any] = {
    "training": {**SUPERVISED, "batch": 4},
    "limits": {"prompt": 400, "total": 480},
    "max_new_tokens": 12,
    "header": "short",
    "held_out": 0.3,
    "least_accuracy": 0.0,
}


def written(path: Path, values: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path


def line(**arguments: Any) -> list[str]:
    return [str(word) for name, value in arguments.items() for word in (f"--{name.replace('_', '-')}", value)]


@dataclass(frozen=True)
class Made:
    """Results of the stages, by name."""

    root: Path

    def __getattr__(self, name: str) -> Path:
        return self.root / name / "result"

    def teach(self, out: Path, spec: dict[str, Any], drawn: Path) -> list[dict[str, Any]]:
        """Runs the stage `teacher`."""
        given = {"data": self.data, "sft": self.sft, "samples": drawn}
        teacher.main(line(spec=written(out / "teacher.yaml", spec), **given, out=out))
        return read_jsonl(out / "result" / "rewrites.jsonl")

    def train(self, out: Path, scale: dict[str, Any], drawn: Path, taught: Path) -> dict[str, float]:
        """Runs the stage `generative_reward_model`."""
        files = {"spec": written(out / "spec.yaml", MODEL), "scale": written(out / "scale.yaml", scale)}
        given = {"data": self.data, "sft": self.sft, "samples": drawn, "teacher": taught}
        generative_reward_model.main(line(**files, **given, seed=0, out=out))
        metrics: dict[str, float] = json.loads((out / "result" / "metrics.json").read_text())
        return metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Data, tokenizer and SFT model; samples, half of them right, written by hand; a teacher's rewrites; a model."""
    root = tmp_path_factory.mktemp("reasoning")
    found = Made(root)
    prepare.main(line(spec=written(root / "data.yaml", DATA), out=root / "data"))
    words = written(root / "tokenizer.yaml", {"vocabulary": 400})
    tokenizer.main(line(spec=words, data=found.data, out=root / "tokenizer"))
    files = {"spec": written(root / "backbone.yaml", BACKBONE), "evaluation": written(root / "e.yaml", EVALUATION)}
    sft.main(line(**files, data=found.data, tokenizer=found.tokenizer, seed=0, out=root / "sft"))
    settings = written(root / "samples.yaml", SAMPLES)
    samples.main(line(spec=settings, data=found.data, sft=found.sft, seed=0, out=root / "samples"))
    by_hand(found, root / "drawn")
    found.teach(root / "teacher", TEACHER, root / "drawn")
    found.train(root / "model", SCALE, root / "drawn", found.teacher)
    return found


def slipped(solution: str) -> str:
    """The solution with another last result and answer."""
    head, _, last = solution.rstrip(".").rpartition(" ")
    other = str(int(last) + 1)
    return f"{head} {other}.".replace(f"= {last}.", f"= {other}.")


def by_hand(made: Made, folder: Path) -> None:
    """A right and a wrong sample of every question."""
    folder.mkdir()
    encoder = load_encoder(made.data, made.sft / "model")
    encoder.tokenizer.save_pretrained(folder / "tokenizer")
    rows = []
    for question in read_jsonl(made.data / "questions.jsonl"):
        for number, text in enumerate((question["solution"], slipped(question["solution"]))):
            row = sample_row(question, number, text)
            assert row["correct"] is (number == 0)
            rows.append({**row, "token_ids": encoder.sequence(question, text).response})
    write_jsonl(folder / "samples.jsonl", rows)


def test_every_question_is_sampled_as_often_as_asked(made: Made) -> None:
    rows = read_jsonl(made.samples / "samples.jsonl")
    questions = read_jsonl(made.data / "questions.jsonl")
    assert [row["id"] for row in rows] == [f"{each['id']}/{n}" for each in questions for n in range(2)]
    metrics = json.loads((made.samples / "metrics.json").read_text())
    assert metrics["correct"] + metrics["erroneous"] == metrics["samples"] == len(rows) == 12
    encoder = load_encoder(made.data, made.samples / "tokenizer")
    assert all(encoder.tokenizer.decode(r["token_ids"], skip_special_tokens=True) == r["prediction"] for r in rows)


def test_samples_are_the_same_again(made: Made, tmp_path: Path) -> None:
    settings = written(tmp_path / "samples.yaml", SAMPLES)
    samples.main(line(spec=settings, data=made.data, sft=made.sft, seed=0, out=tmp_path))
    assert digest(tmp_path / "result") == digest(made.samples)


def test_the_teacher_corrects_the_wrong_samples_and_is_verified(made: Made) -> None:
    rows = read_jsonl(made.teacher / "rewrites.jsonl")
    fields = {"id", "question_id", "prompt", "prediction", "first_error_step", "rewrite", "accepted", "reason"}
    assert all(set(row) == {*fields, "edit_distance"} for row in rows)
    assert len(rows) == 6
    assert all(row["accepted"] and row["edit_distance"] >= 2 and row["id"].endswith("/1") for row in rows)
    metrics = json.loads((made.teacher / "metrics.json").read_text())
    assert metrics["accepted_share"] == metrics["locating_accuracy"] == 1.0


def test_a_teacher_that_spoils_everything_is_never_accepted(made: Made, tmp_path: Path) -> None:
    rows = made.teach(tmp_path / "teacher", {**TEACHER, "options": {"noise": 1.0}}, made.root / "drawn")
    assert not any(row["accepted"] for row in rows)
    assert all(row["reason"] for row in rows)
    with pytest.raises(DataError, match="rewrites of 0 questions were accepted"):
        made.train(tmp_path / "model", SCALE, made.root / "drawn", tmp_path / "teacher" / "result")


def test_odd_predictions_are_refused_with_their_reason_and_still_scored(made: Made, tmp_path: Path) -> None:
    """Nothing at all, more than ten steps, no answer, and the reference itself marked as wrong."""
    rows = read_jsonl(made.root / "drawn" / "samples.jsonl")
    encoder = load_encoder(made.data, made.sft / "model")
    odd = {"": "too many edits", "1 + 1 = 2.\n" * 12: "too many steps", "Who knows?": "too many edits"}
    odd[rows[6]["solution"]] = "same text"
    for row, text in zip(rows[1:8:2], odd, strict=True):
        ids = encoder.sequence({"prompt": row["prompt"]}, text).response
        row |= {"prediction": text, "correct": False, "token_ids": ids}
    (tmp_path / "drawn").mkdir()
    write_jsonl(tmp_path / "drawn" / "samples.jsonl", rows)
    encoder.tokenizer.save_pretrained(tmp_path / "drawn" / "tokenizer")
    taught = made.teach(tmp_path / "teacher", TEACHER, tmp_path / "drawn")
    assert [row["reason"] for row in taught] == [*odd.values(), "", ""]
    made.train(tmp_path / "model", SCALE, tmp_path / "drawn", tmp_path / "teacher" / "result")
    scored = read_jsonl(tmp_path / "model" / "result" / "token_rewards.jsonl")
    assert [len(row["rewards"]) for row in scored] == [len(row["token_ids"]) for row in rows]
    assert len(scored[1]["rewards"]) == 1


def test_every_token_of_every_sample_has_a_reward_of_its_sign(made: Made) -> None:
    drawn = {row["id"]: row for row in read_jsonl(made.root / "drawn" / "samples.jsonl")}
    rows = read_jsonl(made.model / "token_rewards.jsonl")
    assert {row["id"] for row in rows} == set(drawn)
    for row in rows:
        sample = drawn[row["id"]]
        assert row["token_ids"] == sample["token_ids"]
        assert len(row["rewards"]) == len(row["token_ids"]) == len(row["probabilities"])
        low, high = (0.0, 0.5) if sample["correct"] else (-0.1, 0.0)
        expected = [min(max(p - 0.5, low), high) for p in row["probabilities"]]
        assert row["rewards"] == pytest.approx(expected)


def test_the_model_corrects_every_wrong_sample_itself(made: Made) -> None:
    rows = read_jsonl(made.model / "grm_rewrites.jsonl")
    assert {row["id"] for row in rows} == {row["id"] for row in read_jsonl(made.teacher / "rewrites.jsonl")}
    assert {name for row in rows for name in row} == set(read_jsonl(made.teacher / "rewrites.jsonl")[0])


def test_metrics_are_flat_and_finite(made: Made) -> None:
    metrics = json.loads((made.model / "metrics.json").read_text())
    assert {"locating_accuracy", "rewrite_accuracy", "fidelity/auc", "fidelity/recall", "locating_rows"} <= set(metrics)
    assert all(type(value) in (int, float) and math.isfinite(value) for value in metrics.values())


def test_a_model_that_cannot_correct_stops_and_its_result_says_why(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demanding = {**SCALE, "least_accuracy": 0.6}
    with pytest.raises(FileNotFoundError, match=r"metrics\.json"):
        made.train(tmp_path, demanding, made.root / "drawn", made.teacher)
    assert [path.name for path in (tmp_path / "result").iterdir()] == [STOPPED_FILE]
    said = read_json(tmp_path / "result" / STOPPED_FILE)
    assert re.search(r"of the rewrites of 2 held-out wrong predictions are right, below .* 0\.6", said["reason"])
    assert said["metrics"]["rewrite_accuracy"] < 0.6
    assert f"stopped: {said['reason']}" in capsys.readouterr().err


def test_training_is_repeatable(made: Made, tmp_path: Path) -> None:
    made.train(tmp_path, SCALE, made.root / "drawn", made.teacher)
    assert digest(tmp_path / "result") == digest(made.model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"header": "long"}, "header is 'long'; known: paper, short"),
        ({"held_out": 0.0}, "held_out is 0.0; it must be between 0 and 1, both excluded"),
        ({"negative": [0.0, -0.1]}, r"negative is \[0.0, -0.1\]; state the lower bound first"),
        ({"trainng": {}}, "unknown setting 'trainng'; did you mean 'training'"),
    ],
)
def test_unusable_settings_are_refused(made: Made, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        made.train(tmp_path, {**SCALE, **changes}, made.root / "drawn", made.teacher)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "friend"}, "kind is 'friend'; known: oracle, endpoint, local"),
        ({"kind": "oracle", "options": {"nois": 0.1}}, "unknown setting 'options.nois'; did you mean 'noise'"),
        ({"kind": "local", "options": {"source": "x"}}, "'options.template' and 'options.limits' are missing"),
    ],
)
def test_unusable_teachers_are_refused(made: Made, tmp_path: Path, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        made.teach(tmp_path, spec, made.root / "drawn")


def test_a_sample_of_another_data_set_is_refused(made: Made, tmp_path: Path) -> None:
    rows = read_jsonl(made.root / "drawn" / "samples.jsonl")
    rows[3]["question_id"] = "elsewhere"
    write_jsonl(tmp_path / "samples.jsonl", rows)
    with pytest.raises(DataError, match="row 4, field 'question_id': the question 'elsewhere' is not in the data"):
        made.teach(tmp_path / "out", TEACHER, tmp_path)


def test_rewards_of_another_tokenizer_lie_on_the_policys_tokens(made: Made) -> None:
    """The same text cut into other tokens: as many rewards as tokens drawn, the sum of log-probabilities kept."""
    encoder = load_encoder(made.data, made.sft / "model")
    other = load_encoder(made.data, made.sft / "model")
    other.tokenizer = train_byte_level_bpe(["1 + 2 = 3."], 300)
    ids = [*encoder.tokenizer.encode("So 4 + 5 = 9.\nThe answer is 9.", add_special_tokens=False), encoder.eos_id]
    text = encoder.tokenizer.decode(ids, skip_special_tokens=True)
    model_ids = other.template.response_ids(other.tokenizer, text)
    logprobs = [-0.01 * (i + 1) for i in range(len(model_ids))]
    found = realigned(ids, encoder, model_ids, other, logprobs)
    assert len(found) == len(ids) < len(model_ids)
    assert sum(found) == pytest.approx(sum(logprobs))
    assert found[-1] == logprobs[-1]


def test_rewrites_follow_correct_prediction_and_prompts_hold_the_three_texts(made: Made) -> None:
    encoder = load_encoder(made.data, made.sft / "model")
    question = read_jsonl(made.data / "questions.jsonl")[0]
    wrong = WrongSolution("w", question, "Nothing.\nThe answer is 0.")
    for template, start in ((PAPER, "Below is an instruction"), (SHORT, "Make minimal modifications")):
        asked = template.rewriting(question["prompt"], question["solution"], wrong.prediction)
        assert asked.startswith(start)
        places = [asked.index(text) for text in (question["prompt"], question["solution"], wrong.prediction)]
        assert places == sorted(places)
    sequence = ModelTasks(encoder, SHORT).rewriting(wrong, question["solution"])
    assert encoder.tokenizer.decode(sequence.prompt).endswith("Correct prediction:")
    assert encoder.tokenizer.decode(sequence.response) == question["solution"] + "<|end|>"
