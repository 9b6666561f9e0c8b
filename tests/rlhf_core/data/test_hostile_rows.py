"""Rows and files that are wrong in an odd way are named where they are read."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from rlhf_core.data.dialogue import prompt_messages, render_dialogue
from rlhf_core.data.jsonl import read_lines
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import LONGEST_TEXT, RECORD_TYPES, record_type
from rlhf_core.data.sources import DirectorySource
from rlhf_core.errors import DataError
from tasks.params.yaml_files import read_mapping

ROW = '{"id": "a", "prompt": "q", "chosen": "x", "rejected": "y", "source": "s"%s}'


NO_DIALOGUE = (
    "not a list of mappings with role (system, user, assistant) and content, the last one of the user, of at most "
    "1,000,000 characters"
)
NO_HISTORY = "not a list of mappings with role (system, user, assistant) and content"
NO_TURNS = ('"a post"', '[["q", "a"]]', '[{"role": "user"}]', '[{"role": "alien", "content": "x"}]')
ANOTHER_PROMPT = ("messages", "the last message is not the prompt, and the prompt is not the dialogue as text")
UNANSWERABLE = (
    '"hello"', "[]", "[1]", '[{"role": "user"}]', '[{"role": "user", "content": null}]',
    '[{"role": [], "content": "x"}]',
    '[{"role": "alien", "content": "x"}]', '[{"role": "system", "content": "x"}]',
    '[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]',
    '[{"role": "user", "content": "%s"}]' % ("x" * (LONGEST_TEXT + 1)),
)  # fmt: skip


def faults(tmp_path: Path, line: str, kind: str = "preference") -> list[tuple[str, str]]:
    path = tmp_path / "rows.train.jsonl"
    path.write_text(line + "\n")
    lines = read_lines(path)
    return [(bad.field, bad.reason) for bad in (*lines.broken, *find_faults(lines.rows, record_type(kind)))]


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        (', "carried": NaN', ("carried", "not finite")),
        (', "carried": {"deep": [1e999]}', ("carried", "not finite")),
        (', "carried": "\\ud800"', ("carried", "holds a lone surrogate, which no encoding can write")),
        (', "label": 1%s' % ("0" * 400), ("label", "not finite")),
        (', "label": NaN', ("label", "not finite")),
        *((f', "messages": {wrong}', ("messages", NO_DIALOGUE)) for wrong in UNANSWERABLE),
        *((f', "history": {wrong}', ("history", NO_HISTORY)) for wrong in NO_TURNS),
        (', "prompt": "other"', ("prompt", "set twice")),
        (', "meta": {"a": 1, "a": 2}', ("a", "set twice")),
    ],
)
def test_an_odd_value_is_named(field: str, reason: tuple[str, str], tmp_path: Path) -> None:
    assert faults(tmp_path, ROW % "") == []
    assert faults(tmp_path, ROW % field) == [reason]


def said(*contents: str) -> list[dict[str, str]]:
    """Messages of the user and the assistant in turn."""
    return [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(contents)]


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
    row = {"id": "a", "prompt": prompt, "chosen": "x", "rejected": "y", "response": "x", "source": "s"}
    row |= {"category": "c", "turns": [prompt, "And then?"]} if kind == "benchmark" else {}
    found = find_faults([(1, row | {"messages": messages})], record_type(kind))
    assert [(bad.field, bad.reason) for bad in found] == ([] if same else [ANOTHER_PROMPT])


def test_null_messages_are_none(tmp_path: Path) -> None:
    line = ROW % ', "messages": null'
    assert faults(tmp_path, line) == []
    row = json.loads(line)
    assert prompt_messages(row) == [{"role": "user", "content": row["prompt"]}]


def test_a_text_that_takes_minutes_is_refused(tmp_path: Path) -> None:
    row = {"id": "a", "prompt": "x" * (LONGEST_TEXT + 1), "source": "s"}
    assert faults(tmp_path, json.dumps(row), "prompt") == [("prompt", "longer than 1,000,000 characters")]


@pytest.mark.parametrize("kind", RECORD_TYPES)
def test_every_type_names_a_carried_value_that_no_file_could_hold(kind: str) -> None:
    found = find_faults([(1, {"carried": float("inf")})], record_type(kind))
    assert ("carried", "not finite") in {(found[0].field, found[0].reason), *found[0].others}


@pytest.mark.parametrize("make", ["pipe", "dangling", "loop", "folder"])
def test_what_is_not_a_file_with_rows_is_refused(make: str, tmp_path: Path) -> None:
    path = tmp_path / "set.train.jsonl"
    if make == "pipe":
        os.mkfifo(path)
    elif make == "folder":
        path.mkdir()
    else:
        path.symlink_to("nothing" if make == "dangling" else path.name)
    with pytest.raises(DataError, match=r"set\.train\.jsonl.*(not a regular file|cannot be read)"):
        DirectorySource(tmp_path).load("set", "train")


@pytest.mark.parametrize("name", ["a\0b.train.jsonl", "a\ud800.train.jsonl"])
def test_a_path_that_no_file_can_have_is_refused_in_words(name: str, tmp_path: Path) -> None:
    message = rf"file .*{re.escape(ascii(name)[1:-1])}: invalid path \(.*\)\. Remove the characters"
    with pytest.raises(DataError, match=message):
        read_lines(tmp_path / name)
    with pytest.raises(DataError, match=message):
        read_mapping(tmp_path / name)


@pytest.mark.parametrize("text", ["\\u200b\\u200b", "\\u2060 \\ufeff", "\\u202e", "\\u0000"])
def test_a_text_of_invisible_characters_is_empty(tmp_path: Path, text: str) -> None:
    line = f'{{"id": "a", "prompt": "{text}", "chosen": "x", "rejected": "y", "source": "s"}}'
    assert faults(tmp_path, line) == [("prompt", "empty")]


@pytest.mark.parametrize(
    ("rejected", "differ"),
    [
        ("a\u200bb", False), ("\ufeffab", False), ("ab \u200b", False), ("a\u00adb\u200e", False), ("a\x00b\n", False),
        ("a b", True), ("a\nb", True), ("a\u00a0b", True), ("ab\u0301", True), ("a\u200bc", True),
    ],
)  # fmt: skip
def test_responses_that_differ_in_invisible_characters_alone_are_identical(
    tmp_path: Path, rejected: str, differ: bool
) -> None:
    line = json.dumps({"id": "a", "prompt": "q", "chosen": "ab", "rejected": rejected, "source": "s"})
    assert faults(tmp_path, line) == ([] if differ else [("rejected", "identical responses")])
