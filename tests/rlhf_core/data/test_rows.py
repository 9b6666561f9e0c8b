"""The door for rows: files are read line by line, rows are screened against the schema of their type, faults named."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_core.data.dialogue import render_dialogue
from rlhf_core.data.jsonl import Lines, read_jsonl, read_lines
from rlhf_core.data.quarantine import QuarantineSummary, Screening, find_faults
from rlhf_core.data.schemas import LONGEST_TEXT, RECORD_TYPES, infer_record_type, record_type
from rlhf_core.errors import DataError
from tasks.params.yaml_files import read_mapping

from .conftest import pair

VALID: dict[str, dict[str, Any]] = {
    "preference": pair(),
    "prompt": {"prompt": "Q"},
    "sft": {"prompt": "Q", "response": "A"},
    "question": {"question": "Q", "choices": ["a", "b"], "solution": "", "answer": "b", "answer_index": 1},
    "feedback": {
        "question": "Q", "passages": [], "predictions": ["An answer."],
        "feedback": {"errors": [{"error type": "Irrelevant", "start": 0, "end": 2}], "missing_info": []},
    },
    "translation": {"source_lang": "es", "target_lang": "en", "source_text": "hola", "target_text": "hello"},
    "benchmark": {"category": "c", "turns": ["a", "b"], "reference": None},
    "code": {"question": "Q", "solution": "x = 1", "tests": ["assert x"]},
    "model_output": {"question_id": "q", "generator": "g", "output": ""},
    "sentences": {"text": "One. Two.", "sentence_spans": [[0, 4], [5, 9]]},
}  # fmt: skip
VALID = {name: {"id": "1", "source": "s", **row} for name, row in VALID.items()}
SURROGATE = "holds a lone surrogate, which no encoding can write"
NO_DIALOGUE = (
    "not a list of mappings with role (system, user, assistant) and content, the last one of the user, of at most "
    "1,000,000 characters"
)
NO_HISTORY = "not a list of mappings with role (system, user, assistant) and content"
ANOTHER_PROMPT = "the last message is not the prompt, and the prompt is not the dialogue as text"
MANY_CHOICES = "more than 26 choices, the letters A to Z; remove wrong ones"


def faults(name: str, *records: dict[str, Any]) -> list[tuple[int, str, str]]:
    bad = find_faults(list(enumerate(records, start=1)), record_type(name))
    return [(item.row, item.field, item.reason) for item in bad]


def said(*contents: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]


@pytest.mark.parametrize("name", RECORD_TYPES)
def test_a_record_has_every_required_field_and_may_have_others(name: str) -> None:
    valid = VALID[name]
    assert faults(name, valid | {"meta": {"anything": [1]}}) == []
    assert infer_record_type([valid]).name == name
    assert faults(name, valid | {"carried": math.inf}) == [(1, "carried", "not finite")]
    for field in record_type(name).required:
        assert faults(name, {key: value for key, value in valid.items() if key != field}) == [(1, field, "missing")]
        assert faults(name, valid | {field: None}) == [(1, field, "missing")]


@pytest.mark.parametrize(
    ("name", "change", "field", "reason"),
    [
        ("preference", {"chosen": "  \n"}, "chosen", "empty"),
        *(
            ("preference", {"prompt": text}, "prompt", "empty")
            for text in ("\u200b\u200b", "\u2060 \ufeff", "\u202e", "\0")
        ),
        ("preference", {"prompt": 7}, "prompt", "not text"),
        ("preference", {"prompt": "\ud800"}, "prompt", SURROGATE),
        ("preference", {"carried": "\ud800"}, "carried", SURROGATE),
        ("prompt", {"prompt": "x" * (LONGEST_TEXT + 1)}, "prompt", "longer than 1,000,000 characters"),
        *(
            ("preference", {"chosen": "ab", "rejected": text}, "rejected", "identical responses")
            for text in (" ab\n", "a\u200bb", "\ufeffab", "ab \u200b", "a\u00adb\u200e", "a\x00b\n")
        ),
        ("preference", {"label": math.nan}, "label", "not finite"),
        ("preference", {"label": 10**400}, "label", "not finite"),
        ("preference", {"score_chosen": math.inf}, "score_chosen", "not finite"),
        ("preference", {"margin": "1"}, "margin", "not a number"),
        ("preference", {"label": True}, "label", "not a number"),
        *(
            ("preference", {"messages": wrong}, "messages", NO_DIALOGUE)
            for wrong in (
                "hello", [], [1], [{"role": "user"}], [{"role": "user", "content": None}],
                [{"role": [], "content": "x"}], [{"role": "alien", "content": "x"}],
                [{"role": "system", "content": "x"}], said("a", "b"), said("x" * (LONGEST_TEXT + 1)),
            )
        ),
        *(
            ("preference", {"history": wrong}, "history", NO_HISTORY)
            for wrong in ("a post", [["q", "a"]], [{"role": "user"}], [{"role": "alien", "content": "x"}])
        ),
        ("sft", {"response": ""}, "response", "empty"),
        ("question", {"answer": "c", "answer_index": None}, "answer", "not one of the choices"),
        ("question", {"answer_index": 0}, "answer_index", "does not point at the answer"),
        ("question", {"answer_index": 2}, "answer_index", "does not point at the answer"),
        ("question", {"choices": ["b"]}, "choices", "not two or more texts"),
        ("question", {"choices": [*"bcdefghijklmnopqrstuvwxyz01"], "answer_index": 0}, "choices", MANY_CHOICES),
        ("feedback", {"passages": [["Title", ""]]}, "passages", "not a list of passages, each [title, sentence, ...]"),
        (
            "feedback", {"feedback": {"errors": [{"start": 0, "end": 2}], "missing_info": []}}, "feedback",
            "not a mapping of errors (with error type, start and end) and missing_info",
        ),
        ("feedback", {"predictions": ["A"]}, "feedback", "an error's span lies outside the first prediction"),
        ("feedback", {"predictions": []}, "predictions", "not a list of non-empty texts"),
        ("benchmark", {"turns": []}, "turns", "not a list of non-empty texts"),
        ("benchmark", {"reference": [1]}, "reference", "neither a text nor a list of non-empty texts"),
        ("code", {"tests": []}, "tests", "neither a text nor a list of non-empty texts"),
        ("code", {"tests": " "}, "tests", "neither a text nor a list of non-empty texts"),
        ("sentences", {"sentence_spans": [[0, 4, 5]]}, "sentence_spans", "not a list of [start, end] pairs"),
        ("sentences", {"sentence_spans": [[5, 9], [0, 4]]}, "sentence_spans", "not in order within the text"),
        ("sentences", {"sentence_spans": [[0, 99]]}, "sentence_spans", "not in order within the text"),
    ],
)  # fmt: skip
def test_a_fault_names_field_and_reason(name: str, change: dict[str, Any], field: str, reason: str) -> None:
    assert faults(name, VALID[name] | change) == [(1, field, reason)]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        *(
            ("preference", {"chosen": "ab", "rejected": text})
            for text in ("a b", "a\nb", "a\u00a0b", "ab\u0301", "a\u200bc")
        ),
        ("preference", {"messages": None}),
        ("question", {"choices": [*"bcdefghijklmnopqrstuvwxyz0"], "answer_index": 0}),
        ("benchmark", {"reference": "text"}),
        ("code", {"tests": "assert x"}),
        ("model_output", {"output": ["one", ""]}),
    ],
)  # fmt: skip
def test_what_is_unusual_but_good_passes(name: str, change: dict[str, Any]) -> None:
    assert faults(name, VALID[name] | change) == []


@pytest.mark.parametrize("kind", ["preference", "prompt", "sft", "benchmark"])
@pytest.mark.parametrize(
    ("prompt", "messages", "same"),
    [
        ("Why?", said("Who?"), False),
        ("Why?", said("Why?", "So.", "Who?"), False),
        ("Human: Why?\n\nAssistant: So.\n\nHuman: Who?\n\nAssistant:", said("Why?", "No.", "Who?"), False),
        ("Human: Who?\n\nAssistant:", said("Why?", "So.", "Who?"), False),
        ("Why?", said(" Why?\n"), True),
        ("Who?", said("Why?", "So.", "Who?"), True),
        ("Who?", [{"role": "system", "content": "Be brief."}, *said("Who?")], True),
        ("\n\nHuman:Why?\n\nAssistant: So.\n\nHuman: Who?\n\nAssistant:", said("Why?", "So. ", "Who?"), True),
        (render_dialogue(said("He said:\n\nHuman: a", "b", "c")), said("He said:\n\nHuman: a", "b", "c"), True),
    ],
)
def test_messages_ask_the_prompt_that_a_judge_reads(
    kind: str, prompt: str, messages: list[dict[str, str]], same: bool
) -> None:
    asked = {"turns": [prompt, "And then?"]} if kind == "benchmark" else {"prompt": prompt}
    found = faults(kind, VALID[kind] | asked | {"messages": messages})
    assert found == ([] if same else [(1, "messages", ANOTHER_PROMPT)])


def test_the_later_of_equal_rows_is_bad_and_a_row_has_its_first_fault() -> None:
    assert faults("preference", pair(1), pair(2), pair(1, prompt="Another?")) == [(3, "id", "duplicate id")]
    assert faults("preference", pair(1, id=None), pair(2, id=None)) == [(1, "id", "missing"), (2, "id", "missing")]
    assert faults("preference", pair(prompt="", chosen=3)) == [(1, "prompt", "empty")]


JSON_VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)


@given(st.data(), st.sampled_from(sorted(RECORD_TYPES)))
def test_any_json_record_is_judged_without_a_crash(data: st.DataObject, name: str) -> None:
    row = st.dictionaries(st.sampled_from([*record_type(name).fields]), JSON_VALUE)
    changes = data.draw(st.lists(row, min_size=1, max_size=4))
    faults(name, *(VALID[name] | change for change in changes))


def test_damaged_rows_do_not_turn_pairs_into_prompts() -> None:
    rows = [pair(1), *({"id": str(n), "prompt": "Q", "source": "s"} for n in range(5))]
    assert infer_record_type(rows).name == "preference"
    with pytest.raises(DataError, match="preference"):
        record_type("prefrence")
    with pytest.raises(DataError, match=r"no record type fits.*colour"):
        infer_record_type([{"colour": "red"}])


# --- screening -------------------------------------------------------------------------------------------------------


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def screened(path: Path, share: float = 0.5, kind: str = "preference") -> tuple[list[str], QuarantineSummary]:
    rows, summary = Screening(path.parent / "bad", share).apply(read_lines(path), record_type(kind))
    return [row["id"] for row in rows], summary


def test_bad_rows_go_to_the_quarantine_file_and_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "d.train.jsonl"
    write(path, pair(1), "{broken", pair(2, chosen=""), pair(3), pair(4), pair(1), pair(5, prompt="x\ud800"), pair(6))
    good, summary = screened(path)
    assert good == ["pair-1", "pair-3", "pair-4", "pair-6"]
    assert str(summary).startswith(f"{path}: 4 of 8 rows quarantined: ")
    assert summary.reasons == dict.fromkeys(
        ["broken JSON", "chosen: empty", "id: duplicate id", f"prompt: {SURROGATE}"], 1
    )
    assert summary.quarantine_file is not None
    rows = [json.loads(line) for line in Path(summary.quarantine_file).read_text().splitlines()]
    assert [(row["file"], row["row"], row["field"], row["reason"]) for row in rows] == [
        (str(path), 2, "", "broken JSON"),
        (str(path), 3, "chosen", "empty"),
        (str(path), 6, "id", "duplicate id"),
        (str(path), 7, "prompt", SURROGATE),
    ]
    assert [row["record"] for row in rows[:2]] == ["{broken", pair(2, chosen="")]
    write(path, pair(1), pair(2))
    assert screened(path)[1].quarantine_file is None
    assert list((tmp_path / "bad").iterdir()) == [], "a clean run removes the file of an earlier one"


def test_a_bad_row_of_many_lists_in_each_other_is_kept(tmp_path: Path) -> None:
    path = write(
        tmp_path / "d.train.jsonl", pair(1), json.dumps(pair(2, chosen=5))[:-1] + f', "x": {"[" * 900}{"]" * 900}}}'
    )
    assert screened(path)[0] == ["pair-1"]


def test_more_than_the_tolerated_share_is_refused_naming_the_first_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "d.train.jsonl", *[pair(n) for n in range(8)], pair(8, prompt=" "), pair(9, chosen=1))
    with pytest.raises(DataError, match=r"row 9, field 'prompt': empty.*2 of 10 rows.*row 10, field 'chosen'"):
        screened(path, share=0.1)
    assert len((tmp_path / "bad" / "d.train.jsonl.quarantine.jsonl").read_text().splitlines()) == 2
    assert screened(path, share=0.2)[1].quarantined == 2
    with pytest.raises(DataError, match=r"row 9, field 'prompt': empty.*name a quarantine folder"):
        Screening().apply(read_lines(path), record_type("preference"))
    with pytest.raises(DataError, match="row 1, field 'rejected': identical responses"):
        screened(write(path, pair(rejected="A good answer.")), share=1.0)
    with pytest.raises(DataError, match="no rows"):
        Screening().apply(Lines("nothing"), record_type("preference"))


# --- files -----------------------------------------------------------------------------------------------------------

TWICE = b'{"a": 1, "a": 2}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"a": 1}\n{"a": \n', "row 2: broken JSON"),
        (b'{"a": 1}\n\n[1]\n', "row 3: not a JSON object"),
        (b'{"a": 1}\n{"a": "caf\xe9"}\n', "row 2: not UTF-8"),
        (TWICE, "row 1: set twice"),
        (b'{"b": ' + TWICE[:-1] + b"}\n", "row 1: set twice"),
        (b"", "the file is empty"),
        (b"\n \n", "the file is empty"),
        ('{"a": "b"}\n'.encode("utf-16"), "row 1: not UTF-8"),
        (b"[" * 100_000 + b"\n", "row 1: broken JSON"),
    ],
)
def test_a_bad_file_is_named_with_its_row(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_jsonl(path)
    assert str(path) in str(caught.value)


def zstd(content: bytes) -> bytes:
    import pyarrow

    return bytes(pyarrow.compress(content, codec="zstd", asbytes=True))


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress, zstd])
def test_a_compressed_file_is_read_by_its_content_and_refused_where_it_is_cut_off(
    tmp_path: Path, name: str, pack: Callable[[bytes], bytes]
) -> None:
    path, rows = tmp_path / name, [{"id": os.urandom(20).hex()} for _ in range(2000)]
    packed = pack("".join(f"{json.dumps(row)}\n" for row in rows).encode())
    path.write_bytes(packed)
    assert read_jsonl(path) == rows
    if pack is not bytes:
        for damaged in (packed[:-2000], packed[:8] + b"damaged"):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=r"damaged or cut off after row \d+|cannot be read"):
                read_jsonl(path)


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a regular file"):
        read_jsonl(tmp_path)
    with pytest.raises(DataError, match=r"none\.jsonl: cannot be read"):
        read_jsonl(tmp_path / "none.jsonl")


@pytest.mark.parametrize("name", ["a\0b.train.jsonl", "a\ud800.train.jsonl"])
def test_a_path_that_no_file_can_have_is_refused_in_words(name: str, tmp_path: Path) -> None:
    message = rf"file .*{re.escape(ascii(name)[1:-1])}: invalid path \(.*\)\. Remove the characters"
    for read in (read_lines, read_mapping):
        with pytest.raises(DataError, match=message):
            read(tmp_path / name)


def test_a_mark_of_byte_order_windows_line_ends_and_broken_lines_keep_the_numbers(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\nnonsense\n{"a": 2}')
    lines = read_lines(path)
    assert lines.rows == [(1, {"a": 1}), (4, {"a": 2})]
    assert [(bad.row, bad.record) for bad in lines.broken] == [(3, "nonsense")]
