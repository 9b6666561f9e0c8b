"""QA-Feedback and real Spanish-to-English pairs in short, and what is refused of such data."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.encoding import messages_of
from rlhf_core.data.slices import sentences
from rlhf_core.errors import DataError, RecipeError
from tasks.data_specs.long_form import labels_of, shortened_prompt
from tasks.running.artifacts import read_jsonl
from tests.tasks.test_aspect_models import metrics, run, settings
from tests.tasks.tiny_pipeline import SETTINGS, SUPERVISED

QA = {
    "source": "directory-longform", "template": "plain", "limits": {"prompt": 200, "total": 320},
    "questions": "qa_feedback", "preference": "qa_feedback_pref", "validation_share": 0.2, "benchmark_rows": 4,
    "context_chars": 400,
}  # fmt: skip
MT = {
    "source": "directory-translation", "template": "plain", "limits": {"prompt": 96, "total": 192},
    "sets": ["tatoeba_es_en"], "validation_share": 0.1, "benchmark_rows": 4, "preference_pairs": 16,
}  # fmt: skip
PAIR = {
    "id": "a", "source_lang": "es", "target_lang": "en", "source_text": "Hola a todos.", "target_text": "Hello to all.",
    "source": "made up",
}  # fmt: skip


def shortened(real_data: Path, folder: Path, counts: dict[str, int]) -> Path:
    """The first rows of some real files as a folder of their own."""
    folder.mkdir()
    for name, count in counts.items():
        for split in ("train", "test"):
            source = real_data / f"{name}.{split}.jsonl.gz"
            if not source.exists():
                pytest.skip(f"the real data directory holds no {source.name}")
            with gzip.open(source, "rt", encoding="utf-8") as file:
                (folder / f"{name}.{split}.jsonl").write_text("".join(islice(file, count)), encoding="utf-8")
    return folder


def backbone(tmp_path: Path, data: Path, name: str) -> Path:
    """A tokenizer and a tiny SFT model on prepared data."""
    tokenizer = run("tokenizer", spec=settings(tmp_path, "tok", {"vocabulary": 500}), data=data, out=tmp_path / "tok")
    spec = {**SETTINGS["backbone"], "training": SUPERVISED}
    evaluation = settings(tmp_path, "evaluation", {"max_new_tokens": 8, "task_tokens": 1, "temperature": 0})
    return run(
        "sft", spec=settings(tmp_path, name, spec), evaluation=evaluation, data=data, tokenizer=tokenizer, seed=0,
        out=tmp_path / name,
    )  # fmt: skip


def test_real_questions_train_a_policy_and_aspect_models_of_every_density(real_data: Path, tmp_path: Path) -> None:
    files = shortened(real_data, tmp_path / "files", {"qa_feedback": 40, "qa_feedback_pref": 200})
    data = run("prepare", spec=settings(tmp_path, "qa", {**QA, "directory": str(files)}), out=tmp_path / "data")
    facts = json.loads((data / "data.json").read_text())
    assert facts["task"] == "long_form"
    assert str(tmp_path) not in json.dumps(facts)
    rows = facts["rows"]
    assert rows["labelled.train"] + rows["labelled.validation"] == 40
    train = {row["question_id"] for row in read_jsonl(data / "preference.train.jsonl")}
    validation = {row["question_id"] for row in read_jsonl(data / "preference.validation.jsonl")}
    assert validation
    assert not train & validation
    sft = backbone(tmp_path, data, "qa-model")
    assert "true_reward" not in metrics(sft)
    for aspect, density in (("relevance", "span"), ("factuality", "sentence"), ("completeness", "sequence")):
        spec = {"title": aspect, "backbone": "qa", "aspect": aspect, "density": density}
        found = run(
            "aspect_model", spec=settings(tmp_path, aspect, spec), scale=settings(tmp_path, "scale", SUPERVISED),
            data=data, sft=sft, seed=0, out=tmp_path / aspect,
        )  # fmt: skip
        assert 0 <= metrics(found)["accuracy"] <= 1


@pytest.mark.parametrize("name", ["tatoeba_es_en", "eutrans_es_en", "wmt_es_en"])
def test_real_pairs_become_every_set_and_give_bleu(real_data: Path, tmp_path: Path, name: str) -> None:
    files = shortened(real_data, tmp_path / "files", {name: 60})
    spec = {**MT, "directory": str(files), "sets": [name]}
    data = run("prepare", spec=settings(tmp_path, "mt", spec), out=tmp_path / "data")
    facts = json.loads((data / "data.json").read_text())
    assert facts["rows"]["sft"] + facts["rows"]["sft.validation"] + facts["too_long"] >= 60
    assert facts["instruction"] == "Translate this Spanish sentence into English: "
    for row in read_jsonl(data / "preference.train.jsonl"):
        assert row["chosen"] == row["target_text"] != row["rejected"]
    for row in read_jsonl(data / "benchmarks" / "alpaca.jsonl"):
        assert row["baseline"] == [row["target_text"]]
    if name == "tatoeba_es_en":
        assert 0 <= metrics(backbone(tmp_path, data, "mt-model"))["bleu"] <= 100


def directory(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    for split in ("train", "test"):
        lines = [json.dumps({**row, "id": f"{split}-{i}"}) for i, row in enumerate(rows)]
        (tmp_path / f"pairs.{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def test_pairs_in_an_unexpected_language_are_refused_by_row(tmp_path: Path) -> None:
    rows = [{**PAIR, "source_text": f"Hola {i}."} for i in range(20)]
    rows[3] = {**rows[3], "source_lang": "fr"}
    spec = {**MT, "directory": str(directory(tmp_path, rows)), "sets": ["pairs"]}
    with pytest.raises(DataError, match=r"row 4, field 'source_lang': translates fr to en, not es to en"):
        run("prepare", spec=settings(tmp_path, "mt", spec), out=tmp_path / "out")


def test_messages_of_a_sentence_are_not_asked_in_place_of_it(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "Who?"}]
    rows = [{**PAIR, "source_text": f"Hola {i}.", "messages": other, "history": other} for i in range(20)]
    files = directory(tmp_path, rows)
    tests = [{**row, "id": f"test-{i}", "source_text": f"Adiós {i}."} for i, row in enumerate(rows)]
    (files / "pairs.test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tests), encoding="utf-8")
    made = run("prepare", spec=settings(tmp_path, "mt", {**MT, "directory": str(files), "sets": ["pairs"]}),
               out=tmp_path / "out")  # fmt: skip
    for name in ("sft", "prompts", "preference.train", "benchmarks/alpaca"):
        for row in read_jsonl(made / f"{name}.jsonl"):
            assert [one["content"] for one in messages_of({"prompt": row["source_text"], **row})] == [
                row["source_text"]
            ]


def test_too_few_pairs_and_an_empty_list_of_sets_are_refused(tmp_path: Path) -> None:
    spec = {**MT, "directory": str(directory(tmp_path, [PAIR])), "sets": ["pairs"]}
    with pytest.raises(DataError, match="1 rows leave none for training besides 1 for validation"):
        run("prepare", spec=settings(tmp_path, "mt", spec), out=tmp_path / "out")
    with pytest.raises(RecipeError, match="'sets' names no set"):
        run("prepare", spec=settings(tmp_path, "mt", {**spec, "sets": []}), out=tmp_path / "out")


def test_pairs_about_no_held_out_question_are_refused(real_data: Path, tmp_path: Path) -> None:
    files = shortened(real_data, tmp_path / "files", {"qa_feedback": 40, "qa_feedback_pref": 5})
    with pytest.raises(DataError, match="no pair of 'qa_feedback_pref' is about one of the 8 held-out questions"):
        run("prepare", spec=settings(tmp_path, "qa", {**QA, "directory": str(files)}), out=tmp_path / "out")


def test_an_error_outside_the_prediction_goes_to_quarantine(tmp_path: Path) -> None:
    row = {
        "question": "Who?", "passages": [["Title", "A sentence."]], "gold_answer": "He.", "source": "made up",
        "predictions": ["He did it. She did not."],
        "feedback": {"errors": [{"error type": "Irrelevant", "start": 0, "end": 9}], "missing_info": []},
    }  # fmt: skip
    rows = [row] * 19 + [
        {**row, "feedback": {"errors": [{"error type": "x", "start": 0, "end": 99}], "missing_info": []}}
    ]
    directory(tmp_path, rows)
    pairs = [
        {"id": f"p{i}", "question_id": f"train-{i}", "prompt": "Who?", "chosen": "a", "rejected": "b"}
        for i in range(20)
    ]
    for split in ("train", "test"):
        lines = "\n".join(json.dumps({**pair, "source": "made up"}) for pair in pairs)
        (tmp_path / f"likes.{split}.jsonl").write_text(lines, encoding="utf-8")
    spec = {**QA, "directory": str(tmp_path), "questions": "pairs", "preference": "likes"}
    data = run("prepare", spec=settings(tmp_path, "qa", spec), out=tmp_path / "out")
    facts = json.loads((data / "data.json").read_text())
    assert facts["quarantine"][0]["reasons"] == {"feedback: an error's span lies outside the first prediction": 1}


def test_a_slice_is_wrong_where_an_error_covers_half_of_it_or_lies_within() -> None:
    text = "The king died in 1199. He was born in Oxford, and he liked it. The end."
    errors = [
        {"error type": "Wrong-Grounding", "start": 17, "end": 21},
        {"error type": "Irrelevant", "start": 46, "end": 71},
    ]
    found = labels_of(text, errors)
    assert [right for *_, right in found["factuality"]] == [False, True, True]
    assert [(text[a:b], right) for a, b, right in found["relevance"]] == [
        ("The king died in 1199.", True),
        ("He was born in Oxford,", True),
        ("and he liked it.", False),
        ("The end.", False),
    ]
    assert [text[a:b] for a, b in sentences(text)][2] == "The end."


def test_a_prompt_keeps_its_question_and_the_first_sentences_of_every_passage() -> None:
    passages = [["A", "One.", "Two.", "Three."], ["B", "Four.", "Five."]]
    whole = shortened_prompt("Who?", passages, 1000)
    assert whole == "question: Who? context: wikipage: A text: One. Two. Three. wikipage: B text: Four. Five."
    short = shortened_prompt("Who?", passages, 50)
    assert short == "question: Who? context: wikipage: A text: One. wikipage: B text: Four."
    assert shortened_prompt("Who?", [], 10) == "question: Who? context:"
