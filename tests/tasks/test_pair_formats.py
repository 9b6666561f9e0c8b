"""Preference pairs in the formats that others publish become records; a row that does not fit has a fault."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import Record, record_type
from rlhf_core.errors import DataError
from tasks.data_specs.pair_formats import read_pairs, split_by_prompt


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


HUMAN = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Who are you?\n\nAssistant:"
DIALOGUE = [user("Hi"), assistant("Hello."), user("Who are you?")]
COMPLETIONS = [{"response": f"answer {score}", "overall_score": score} for score in (3.0, 8.5, 1.0)]
#: A row of each format, and the prompt, chosen and rejected that it stands for.
ROWS: dict[str, tuple[dict[str, Any], tuple[str, str, str]]] = {
    "TRL's plain pair": ({"prompt": "Why?", "chosen": "So.", "rejected": "No."}, ("Why?", "So.", "No.")),
    "TRL's plain pair, implicit prompt": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."},
        ("The sky is", "blue.", "green."),
    ),
    "TRL's conversational pair": (
        {"prompt": [user("Why?")], "chosen": [assistant("So.")], "rejected": [assistant("No.")]},
        ("Why?", "So.", "No."),
    ),
    "TRL's conversational pair, implicit prompt": (
        {"chosen": [user("Why?"), assistant("So.")], "rejected": [user("Why?"), assistant("No.")]},
        ("Why?", "So.", "No."),
    ),
    "UltraFeedback, binarised": (
        {
            "prompt": "Why?", "prompt_id": "f0", "messages": [user("Why?"), assistant("So.")], "score_chosen": 8.0,
            "chosen": [user("Why?"), assistant("So.")], "rejected": [user("Why?"), assistant("No.")],
        },
        ("Why?", "So.", "No."),
    ),
    "UltraFeedback": ({"instruction": "Why?", "completions": COMPLETIONS}, ("Why?", "answer 8.5", "answer 1.0")),
    "HH-RLHF": (
        {"chosen": f"{HUMAN} A helper.", "rejected": f"{HUMAN} Nobody."},
        (HUMAN.strip(), "A helper.", "Nobody."),
    ),
    "a table's pair, empty columns": (
        {"prompt": None, "system": None, "chosen": "The sky is blue.", "rejected": "The sky is green."},
        ("The sky is", "blue.", "green."),
    ),
    "other names": ({"question": "Why?", "preferred": "So.", "dispreferred": "No."}, ("Why?", "So.", "No.")),
}  # fmt: skip


def write(file: Path, *rows: Any) -> Path:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


def records(file: Path, **columns: str) -> list[Record]:
    return [row for _, row in read_pairs(file, columns)[1].rows]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_format_becomes_a_record(tmp_path: Path, name: str) -> None:
    row, expected = ROWS[name]
    found = read_pairs(write(tmp_path / "pairs.jsonl", row), {})[1]
    [(_, record)] = found.rows
    assert (record["prompt"], record["chosen"], record["rejected"]) == expected
    assert not find_faults(found.rows, record_type("preference"))
    assert (record["id"], record["source"]) == ("pairs-000001", "pairs.jsonl")


def test_messages_of_a_dialogue_are_kept(tmp_path: Path) -> None:
    row = {"prompt": DIALOGUE, "chosen": [assistant("A helper.")], "rejected": [assistant("Nobody.")]}
    [record] = records(write(tmp_path / "pairs.jsonl", row))
    assert record["messages"] == DIALOGUE
    assert record["prompt"] == HUMAN.strip()


def test_a_file_can_be_compressed_json_or_parquet(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow.parquet import write_table

    row = ROWS["TRL's conversational pair"][0]
    write_table(pyarrow.Table.from_pylist([row]), tmp_path / "pairs.parquet")
    (tmp_path / "pairs.json").write_text(json.dumps([row]))
    write(tmp_path / "pairs.jsonl.gz", row)
    for suffix in ("parquet", "json", "jsonl.gz"):
        [record] = records(tmp_path / f"pairs.{suffix}")
        assert record["chosen"] == "So."


def test_columns_are_mapped(tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", {"prompt": "Why?", "good": "So.", "bad": "No."})
    [record] = records(file, chosen="good", rejected="bad")
    assert (record["chosen"], record["rejected"]) == ("So.", "No.")
    with pytest.raises(DataError, match="field 'chosen': no row has the column 'better'"):
        records(file, chosen="better", rejected="bad")


def test_an_unknown_format_shows_the_first_row_and_what_was_expected(tmp_path: Path) -> None:
    file = write(tmp_path / "pairs.jsonl", {"text": "x" * 99, "score": 2})
    with pytest.raises(DataError) as raised:
        records(file)
    said = str(raised.value)
    assert 'row 1: unknown format of preference pairs. The row is {text: "xxxx' in said
    assert "score: 2}" in said
    assert "prompt, chosen, rejected: texts" in said
    assert len(said.splitlines()) <= 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"prompt": [user("Why?")], "chosen": [assistant("So.")], "rejected": [user("No.")]},
        {"prompt": [user("Why?")], "chosen": [user("Who?"), assistant("So.")], "rejected": [assistant("No.")]},
        {"prompt": [assistant("Why?")], "chosen": [assistant("So.")], "rejected": [assistant("No.")]},
        {"prompt": "Why?", "chosen": "So.", "rejected": "No."},
        {"prompt": [user("Why?")], "chosen": [assistant("So.")], "rejected": [assistant("So. ")]},
    ],
)
def test_a_row_that_does_not_fit_its_file_is_a_fault(tmp_path: Path, wrong: dict[str, Any]) -> None:
    good = ROWS["TRL's conversational pair"][0]
    lines = read_pairs(write(tmp_path / "pairs.jsonl", good, wrong), {})[1]
    assert [fault.row for fault in find_faults(lines.rows, record_type("preference"))] == [2]


def test_held_out_prompts_are_apart_and_the_same_each_time() -> None:
    rows = [{"prompt": f"{number % 40}", "id": str(number)} for number in range(100)]
    train, test = split_by_prompt(rows, 0.1, 1000)
    assert {row["prompt"] for row in train} & {row["prompt"] for row in test} == set()
    assert len({row["prompt"] for row in test}) == 4
    assert len(train) + len(test) == 100
    assert split_by_prompt(rows, 0.1, 1000) == (train, test)
    assert len({row["prompt"] for row in split_by_prompt(rows, 0.9, 7)[1]}) == 7
