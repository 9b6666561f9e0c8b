from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import (
    RECORD_TYPES,
    infer_record_type,
    record_type,
)
from rlhf_core.errors import DataError

from .conftest import pair

VALID: dict[str, dict[str, Any]] = {
    "preference": pair(),
    "prompt": {"id": "1", "prompt": "Q", "source": "s"},
    "sft": {"id": "1", "prompt": "Q", "response": "A", "source": "s"},
    "question": {
        "id": "1",
        "question": "Q",
        "choices": ["a", "b"],
        "solution": "",
        "answer": "b",
        "answer_index": 1,
        "source": "s",
    },
    "long_form": {"id": "1", "question": "Q", "passages": [["Title", "Sentence."], []][:1], "source": "s"},
    "feedback": {
        "id": "1",
        "question": "Q",
        "passages": [],
        "predictions": ["An answer."],
        "feedback": {"errors": [{"error type": "Irrelevant", "start": 0, "end": 2}], "missing_info": []},
        "source": "s",
    },
    "translation": {
        "id": "1",
        "source_lang": "es",
        "target_lang": "en",
        "source_text": "hola",
        "target_text": "hello",
        "source": "s",
    },
    "benchmark": {"id": "1", "category": "c", "turns": ["a", "b"], "reference": None, "source": "s"},
    "code": {"id": "1", "question": "Q", "solution": "x = 1", "tests": ["assert x"], "source": "s"},
    "judgement": {"id": "1", "benchmark": "alpaca", "preference": 1.5, "raw": "m", "valid": True},
    "model_output": {"id": "1", "question_id": "q", "generator": "g", "output": "", "source": "s"},
    "sentences": {"id": "1", "text": "One. Two.", "sentence_spans": [[0, 4], [5, 9]], "source": "s"},
}


def faults(name: str, *records: dict[str, Any]) -> list[tuple[int, str, str]]:
    bad = find_faults(list(enumerate(records, start=1)), record_type(name))
    return [(item.row, item.field, item.reason) for item in bad]


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_a_valid_record_of_each_type_passes_with_extra_fields(name: str) -> None:
    assert faults(name, VALID[name] | {"meta": {"anything": [1]}}) == []


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_every_required_field_is_required(name: str) -> None:
    for field in record_type(name).required:
        without = {key: value for key, value in VALID[name].items() if key != field}
        assert (1, field, "missing") in faults(name, without)
        assert (1, field, "missing") in faults(name, VALID[name] | {field: None})


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_the_type_of_a_record_is_inferred_from_its_fields(name: str) -> None:
    assert infer_record_type([VALID[name]]).name == name


@pytest.mark.parametrize(
    ("name", "change", "field", "reason"),
    [
        ("preference", {"chosen": "  \n"}, "chosen", "empty"),
        ("preference", {"prompt": 7}, "prompt", "not text"),
        ("preference", {"rejected": " A good answer.\n"}, "rejected", "identical responses"),
        ("preference", {"prompt": "\ud800"}, "prompt", "holds a lone surrogate, which no encoding can write"),
        ("preference", {"label": math.nan}, "label", "not finite"),
        ("preference", {"score_chosen": math.inf}, "score_chosen", "not finite"),
        ("preference", {"margin": "1"}, "margin", "not a number"),
        ("preference", {"label": True}, "label", "not a number"),
        ("sft", {"response": ""}, "response", "empty"),
        ("question", {"answer": "c", "answer_index": None}, "answer", "not one of the choices"),
        ("question", {"answer_index": 0}, "answer_index", "does not point at the answer"),
        ("question", {"answer_index": 2}, "answer_index", "does not point at the answer"),
        ("question", {"choices": ["b"]}, "choices", "not two or more texts"),
        (
            "question",
            {"choices": [*"bcdefghijklmnopqrstuvwxyz01"], "answer_index": 0},
            "choices",
            "more than 26 choices, the letters A to Z; remove wrong ones",
        ),
        ("long_form", {"passages": [["Title", ""]]}, "passages", None),
        ("long_form", {"passages": "text"}, "passages", None),
        ("feedback", {"feedback": {"errors": [{"start": 0, "end": 2}], "missing_info": []}}, "feedback", None),
        ("feedback", {"predictions": []}, "predictions", "not a list of non-empty texts"),
        ("benchmark", {"turns": []}, "turns", "not a list of non-empty texts"),
        ("benchmark", {"reference": [1]}, "reference", None),
        ("code", {"tests": []}, "tests", None),
        ("judgement", {"score": math.nan, "preference": None}, "score", "not finite"),
        ("sentences", {"sentence_spans": [[5, 9], [0, 4]]}, "sentence_spans", "not in order within the text"),
        ("sentences", {"sentence_spans": [[0, 99]]}, "sentence_spans", "not in order within the text"),
    ],
)
def test_a_fault_names_field_and_reason(name: str, change: dict[str, Any], field: str, reason: str | None) -> None:
    found = faults(name, VALID[name] | change)
    assert [fault[:2] for fault in found] == [(1, field)]
    if reason:
        assert found[0][2] == reason


def test_a_question_has_a_choice_for_every_letter() -> None:
    change = {"choices": [*"bcdefghijklmnopqrstuvwxyz0"], "answer_index": 0}
    assert faults("question", VALID["question"] | change) == []


def test_the_later_of_two_equal_ids_is_the_bad_one() -> None:
    assert faults("preference", pair(1), pair(2), pair(1, prompt="Another?")) == [(3, "id", "duplicate id")]


def test_judgements_repeat_an_id_over_games_but_not_within_one() -> None:
    games = [VALID["judgement"] | {"game": game} for game in (1, 2, 2)]
    assert [fault[0] for fault in faults("judgement", *games)] == [3]


def test_rows_without_an_id_are_missing_not_duplicate() -> None:
    assert faults("preference", pair(1, id=None), pair(2, id=None)) == [
        (1, "id", "missing"),
        (2, "id", "missing"),
    ]


def test_all_faults_of_a_row_are_kept() -> None:
    bad = find_faults([(4, pair(prompt="", chosen=3))], record_type("preference"))
    assert (bad[0].row, bad[0].field, bad[0].others) == (4, "prompt", (("chosen", "not text"),))


JSON_VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=3),
    st.lists(st.text(max_size=2), max_size=2),
)


@settings(max_examples=25)
@given(
    st.lists(
        st.dictionaries(st.sampled_from(["id", "prompt", "chosen", "rejected", "source", "label"]), JSON_VALUE),
        min_size=1,
        max_size=4,
    )
)
def test_any_json_record_is_judged_without_a_crash(records: list[dict[str, Any]]) -> None:
    bad = {fault[0] for fault in faults("preference", *records)}
    for row, record in enumerate(records, start=1):
        if row not in bad:
            assert record["prompt"].strip()
            assert record["chosen"].strip() != record["rejected"].strip()
            assert record.get("label") is None or math.isfinite(record["label"])


def test_damaged_rows_do_not_turn_pairs_into_prompts() -> None:
    rows = [pair(1), *({"id": str(n), "prompt": "Q", "source": "s"} for n in range(5))]
    assert infer_record_type(rows).name == "preference"


def test_an_unknown_record_type_lists_the_known_ones() -> None:
    with pytest.raises(DataError, match="preference"):
        record_type("prefrence")
    with pytest.raises(DataError, match=r"no record type fits.*colour"):
        infer_record_type([{"colour": "red"}])
