"""The flow on real preference data in short, and the sets that QA-Feedback and real translations become."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_core.data.dialogue import prompt_messages
from rlhf_core.data.slices import sentences
from rlhf_core.errors import DataError, RecipeError
from rlhf_core.models.loading import load_tokenizer
from tasks import prepare
from tasks.commands.explain import explain
from tasks.data_specs.long_form import labels_of, shortened_prompt
from tasks.running.artifacts import read_json, read_jsonl
from tests.tasks.golden_runs import SETTINGS, SHARED, GoldenRuns, with_upstream

SET = "hh_helpful"
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


def shortened(real_data: Path, folder: Path, counts: dict[str, int]) -> str:
    """Returns a folder with the first rows of some real files."""
    folder.mkdir()
    for name, count in counts.items():
        for split in ("train", "test"):
            source = real_data / f"{name}.{split}.jsonl.gz"
            if not source.exists():
                pytest.skip(f"the real data directory holds no {source.name}")
            with gzip.open(source, "rt", encoding="utf-8") as file:
                (folder / f"{name}.{split}.jsonl").write_text("".join(islice(file, count)), encoding="utf-8")
    return str(folder)


def prepared(root: Path, spec: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Returns the result of `prepare` and its facts."""
    (root / "data.yaml").write_text(yaml.safe_dump(spec), encoding="utf-8")
    prepare.main(["--spec", str(root / "data.yaml"), "--out", str(root / "out")])
    return root / "out" / "result", read_json(root / "out" / "result" / "data.json")


@pytest.fixture(scope="module")
def real(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> GoldenRuns:
    root = tmp_path_factory.mktemp("real")
    data = {
        "source": "directory", "directory": shortened(real_data, root / "files", {SET: 240}), "template": "plain",
        "limits": {"prompt": 96, "total": 192}, "preference": [SET], "validation_share": 0.1, "benchmark_rows": 8,
    }  # fmt: skip
    changes = {
        "data/dialogue": data,
        "tokenizer": {"vocabulary": 600},
        "backbone": {**SETTINGS["backbone"], "training": {**SHARED["supervised"], "learning_rate": 2.0e-2}},
        "evaluation": {"max_new_tokens": 12, "task_tokens": 8, "judge": None},
    }
    made = GoldenRuns(root).write(changes)
    for name in with_upstream(["segment", "dpo"]):
        made.run(name)
    return made


def test_real_pairs_become_every_set_and_policies_are_trained_on_them(real: GoldenRuns) -> None:
    facts = read_json(real.result("dialogue") / "data.json")
    rows = facts["rows"]
    assert rows["preference.train"] + rows["preference.validation"] == 240
    assert rows["preference.validation"] == rows["sft.validation"] == 24
    assert rows["benchmarks/alpaca"] == 8
    assert set(facts["digests"]) == {f"{SET}.train.jsonl", f"{SET}.test.jsonl"}
    assert str(real.root) not in json.dumps(facts)
    held_out = {row["prompt"] for row in real.read("dialogue", "preference.ood.jsonl")}
    assert {row["turns"][0] for row in real.read("dialogue", "benchmarks/alpaca.jsonl")} <= held_out
    assert real.read("sft")["prompts_cut"] > 0
    tokenizer, text = load_tokenizer(real.result("dialogue-tokenizer")), "A café in Zürich: 12 €, naïve — 東京 🙂"
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False)) == text
    for name in ("segment", "dpo"):
        assert len(real.read(name, "generations.jsonl")) == 8
        assert not {"alpaca_wr", "true_reward"} & set(real.read(name))
    assert all(row["true_reward"] is None for row in real.read("segment", "rollouts.jsonl"))
    row = real.read("dialogue", "preference.ood.jsonl")[0]
    found = explain(real.result("model-segment"), row["prompt"], row["chosen"])
    values = [value for *_, value in found["segments"]]
    assert found["total"] == pytest.approx(sum(values) / len(values), abs=1e-5)


def test_real_questions_become_labelled_answers_and_pairs(real_data: Path, tmp_path: Path) -> None:
    files = shortened(real_data, tmp_path / "files", {"qa_feedback": 40, "qa_feedback_pref": 200})
    data, facts = prepared(tmp_path, {**QA, "directory": files})
    assert facts["rows"]["labelled.train"] + facts["rows"]["labelled.validation"] == 40
    train, validation = (
        {row["question_id"] for row in read_jsonl(data / f"preference.{split}.jsonl")}
        for split in ("train", "validation")
    )
    assert validation
    assert not train & validation
    few = shortened(real_data, tmp_path / "few", {"qa_feedback": 40, "qa_feedback_pref": 5})
    with pytest.raises(DataError, match="no pair of 'qa_feedback_pref' is about one of the 8 held-out questions"):
        prepared(tmp_path, {**QA, "directory": few})


def test_columns_that_nothing_reads_and_held_out_prompts_that_are_trained_on_are_recorded(tmp_path: Path) -> None:
    row = {"chosen": "Yes.", "rejected": "No.", "source": "made up", "turns": 1, "label": 1, "score_chosen": 2.0}
    asked = {
        "train": [*(f"Why {i}?" for i in range(19)), " Why 2?"],
        "test": ["Why 3?", "Who?", "Human: Why 4?\n\nAssistant:", "Why 18?"],
    }
    for split, prompts in asked.items():
        rows = [{**row, "id": f"{split}-{i}", "prompt": prompt} for i, prompt in enumerate(prompts)]
        (tmp_path / f"pairs.{split}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    spec = {
        "source": "directory", "directory": str(tmp_path), "template": "plain", "limits": {"prompt": 90, "total": 120},
        "preference": ["pairs"], "validation_share": 0.1, "benchmark_rows": 1, "unread": ["prompt_id"], "held_out": 2,
    }  # fmt: skip
    _, facts = prepared(tmp_path, spec)
    assert facts["unread"] == ["prompt_id", "turns", "label"]
    assert facts["overlap"] == {
        "preference.validation": 1, "preference.ood": 2, "benchmarks/alpaca": 1, "benchmarks/held_out": 1
    }  # fmt: skip


@pytest.mark.parametrize("name", ["tatoeba_es_en", "eutrans_es_en", "wmt_es_en"])
def test_real_translations_become_every_set(real_data: Path, tmp_path: Path, name: str) -> None:
    files = shortened(real_data, tmp_path / "files", {name: 60})
    data, facts = prepared(tmp_path, {**MT, "directory": files, "sets": [name]})
    assert facts["rows"]["sft"] + facts["rows"]["sft.validation"] + facts["too_long"] >= 60
    assert facts["instruction"] == "Translate this Spanish sentence into English: "
    for row in read_jsonl(data / "preference.train.jsonl"):
        assert row["chosen"] == row["target_text"] != row["rejected"]
    for row in read_jsonl(data / "benchmarks" / "alpaca.jsonl"):
        assert row["baseline"] == [row["target_text"]]


def translations(folder: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Writes rows as both splits of a set; returns the data spec of it."""
    for split, hello in (("train", "Hola"), ("test", "Adiós")):
        own = [{"source_text": f"{hello} {i}.", **row, "id": f"{split}-{i}"} for i, row in enumerate(rows)]
        (folder / f"pairs.{split}.jsonl").write_text("\n".join(map(json.dumps, own)), encoding="utf-8")
    return {**MT, "directory": str(folder), "sets": ["pairs"]}


def test_messages_of_a_sentence_are_not_asked_in_place_of_it(tmp_path: Path) -> None:
    other = [{"role": "user", "content": "Who?"}]
    rows = [{k: v for k, v in PAIR.items() if k != "source_text"} | {"messages": other, "history": other}] * 20
    data, _ = prepared(tmp_path, translations(tmp_path, rows))
    for name in ("sft", "prompts", "preference.train", "benchmarks/alpaca"):
        for row in read_jsonl(data / f"{name}.jsonl"):
            (asked,) = prompt_messages({"prompt": row["source_text"], **row})
            assert asked["content"] == row["source_text"]


@pytest.mark.parametrize(
    ("rows", "changes", "error", "message"),
    [
        (
            [*[PAIR] * 3, {**PAIR, "source_lang": "fr"}, *[PAIR] * 16],
            {},
            DataError,
            r"row 4, field 'source_lang': translates fr to en, not es",
        ),
        ([PAIR], {}, DataError, "1 rows leave none for training besides 1 for validation"),
        ([PAIR], {"sets": []}, RecipeError, "'sets' names no set"),
    ],
)
def test_unusable_translations_are_refused(
    tmp_path: Path, rows: list[dict[str, Any]], changes: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prepared(tmp_path, translations(tmp_path, rows) | changes)


def test_an_error_outside_the_prediction_goes_to_quarantine(tmp_path: Path) -> None:
    row = {
        "question": "Who?", "passages": [["Title", "A sentence."]], "gold_answer": "He.", "source": "made up",
        "predictions": ["He did it. She did not."],
        "feedback": {"errors": [{"error type": "Irrelevant", "start": 0, "end": 9}], "missing_info": []},
    }  # fmt: skip
    outside = {**row, "feedback": {"errors": [{"error type": "x", "start": 0, "end": 99}], "missing_info": []}}
    translations(tmp_path, [row] * 19 + [outside])
    pair = {"prompt": "Who?", "chosen": "a", "rejected": "b", "source": "made up"}
    likes = "\n".join(json.dumps({**pair, "id": f"p{i}", "question_id": f"train-{i}"}) for i in range(20))
    for split in ("train", "test"):
        (tmp_path / f"likes.{split}.jsonl").write_text(likes, encoding="utf-8")
    _, facts = prepared(tmp_path, {**QA, "directory": str(tmp_path), "questions": "pairs", "preference": "likes"})
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
