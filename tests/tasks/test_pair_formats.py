"""Preference pairs in the formats that others publish become records; a row that does not fit has a fault."""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow.parquet import write_table

from rlhf_core.data.dialogue import parse_dialogue, prompt_messages
from rlhf_core.data.quarantine import find_faults
from rlhf_core.data.schemas import Record, record_type
from rlhf_core.errors import DataError
from tasks.data_specs.pair_dialogues import COMMON_BEGINNING
from tasks.data_specs.pair_formats import read_pairs, split_by_prompt


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


HUMAN = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Who are you?\n\nAssistant:"
DIALOGUE = [user("Hi"), assistant("Hello."), user("Who are you?")]
COMPLETIONS = [{"response": f"answer {score}", "overall_score": score} for score in (3.0, 8.5, 1.0)]
#: Pairs that the rows of formats stand for, where nothing else is said.
PAIR = ("Why?", "So.", "No.")
SAID = {"chosen": [assistant("So.")], "rejected": [assistant("No.")]}
WHOLE = {"chosen": [user("Why?"), assistant("So.")], "rejected": [user("Why?"), assistant("No.")]}
#: A row of each format; where it stands for another pair than PAIR, beside its prompt, chosen and rejected.
ROWS: dict[str, Any] = {
    "TRL's plain pair": {"prompt": "Why?", "chosen": "So.", "rejected": "No."},
    "TRL's plain pair, implicit prompt": (
        {"chosen": "The sky is blue.", "rejected": "The sky is green."}, ("The sky is", "blue.", "green.")
    ),
    "TRL's conversational pair": {"prompt": [user("Why?")], **SAID},
    "TRL's conversational pair, implicit prompt": WHOLE,
    "UltraFeedback, binarised": {
        "prompt": "Why?", "prompt_id": "f0", "messages": WHOLE["chosen"], "score_chosen": 8.0, **WHOLE
    },
    "UltraFeedback": ({"instruction": "Why?", "completions": COMPLETIONS}, ("Why?", "answer 8.5", "answer 1.0")),
    "HH-RLHF": (
        {"chosen": f"{HUMAN} A helper.", "rejected": f"{HUMAN} Nobody."}, (HUMAN.strip(), "A helper.", "Nobody.")
    ),
    "a table's pair, empty columns": (
        {"prompt": None, "system": None, "chosen": "The sky is blue.", "rejected": "The sky is green."},
        ("The sky is", "blue.", "green."),
    ),
    "an instruction with its input": (
        {"instruction": "Translate.", "input": "Sí.", "chosen": "Yes.", "rejected": "No."},
        ("Translate.\n\nSí.", "Yes.", "No."),
    ),
    "a system text": (
        {"system": "Be kind.", "question": "Why?", "chosen": "So.", "rejected": "No."},
        ("System: Be kind.\n\nHuman: Why?\n\nAssistant:", "So.", "No."),
    ),
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Why?"}],
        "chosen": {"from": "gpt", "value": "So."}, "rejected": {"from": "gpt", "value": "No."},
    },
    "OpenAI": {
        "input": {"messages": [user("Why?")], "tools": []},
        "preferred_output": SAID["chosen"], "non_preferred_output": SAID["rejected"],
    },
    "contents in parts": {"prompt": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}], **SAID},
    "SHP": {"post_id": "x", "history": "Why?", "human_ref_A": "No.", "human_ref_B": "So.", "labels": 0, "score_A": 1},
    "PKU-SafeRLHF": {
        "prompt": "Why?", "response_0": "No.", "response_1": "So.", "better_response_id": 1, "safer_response_id": 0
    },
    "WebGPT": {
        "question": {"full_text": "Why?"}, "answer_0": "No.", "answer_1": "So.", "score_0": -0.5, "score_1": 0.5
    },
    "HelpSteer2": {"prompt": "Why?", "response_1": "So.", "response_2": "No.", "preference_strength": -2},
    "HelpSteer3": {"context": [user("Why?")], "response1": "No.", "response2": "So.", "overall_preference": 3},
    "AlpacaFarm": {"instruction": "Why?", "input": "", "output_1": "No.", "output_2": "So.", "preference": 2},
    "an arena": {
        "conversation_a": WHOLE["rejected"], "conversation_b": WHOLE["chosen"], "winner": "model_b",
        "language": "English",
    },
    "an arena's votes": {
        "prompt": "Why?", "response_a": "So.", "response_b": "No.", "winner_model_a": 1, "winner_model_b": 0
    },
    "Nectar": (
        {
            "prompt": "\n\nHuman: Why?\n\nAssistant: ", "turns": 1, "num_responses": 3,
            "answers": [
                {"answer": "Hm.", "model": "a", "rank": 2.0}, {"answer": "So.", "model": "b", "rank": 1.0},
                {"answer": "No.", "model": "c", "rank": 3.0},
            ],
        },
        ("\n\nHuman: Why?\n\nAssistant: ", "So.", "No."),
    ),
    "Stack Exchange": {"question": "Why?", "answers": [{"text": "No.", "pm_score": 0}, {"text": "So.", "pm_score": 4}]},
    "Stack Exchange, paired": {"question": "Why?", "response_j": "So.", "response_k": "No."},
    "other names": {"question": "Why?", "preferred": "So.", "dispreferred": "No."},
}  # fmt: skip


def row_of(name: str) -> dict[str, Any]:
    """The row of a format."""
    found: dict[str, Any] = ROWS[name][0] if isinstance(ROWS[name], tuple) else ROWS[name]
    return found


def write(file: Path, *rows: Any) -> Path:
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    file.write_bytes(gzip.compress(text.encode()) if file.suffix == ".gz" else text.encode())
    return file


def records(file: Path, **columns: str) -> list[Record]:
    return [row for _, row in read_pairs(file, columns)[1].rows]


@pytest.mark.parametrize("name", ROWS)
def test_a_row_of_each_format_becomes_a_record(tmp_path: Path, name: str) -> None:
    found = read_pairs(write(tmp_path / "pairs.jsonl", row_of(name)), {})[1]
    [(_, record)] = found.rows
    expected = ROWS[name][1] if isinstance(ROWS[name], tuple) else PAIR
    assert (record["prompt"], record["chosen"], record["rejected"]) == expected
    assert not find_faults(found.rows, record_type("preference"))
    assert (record["id"], record["source"]) == ("pairs-000001", "pairs.jsonl")


def test_ids_that_several_rows_have_are_made_different_and_gaps_of_a_table_are_no_values(tmp_path: Path) -> None:
    rows = [{"id": 7, "prompt": "Why?", "chosen": "So.", "rejected": "No.", "score": float("nan")}] * 3
    lines = read_pairs(write(tmp_path / "pairs.jsonl", *rows), {})[1]
    assert [row["id"] for _, row in lines.rows] == ["7", "7-2", "7-3"]
    assert not find_faults(lines.rows, record_type("preference"))
    assert "score" not in lines.rows[0][1]


def test_columns_of_parquet_that_json_has_not_are_texts(tmp_path: Path) -> None:
    from datetime import UTC, datetime
    from decimal import Decimal

    import pyarrow
    from pyarrow.parquet import write_table

    row = {"prompt": "Why?", "chosen": "So.", "rejected": "No.", "image": b"x", "price": Decimal("1.5")}
    row |= {"asked": datetime(2024, 1, 2, tzinfo=UTC)}
    write_table(pyarrow.Table.from_pylist([row]), tmp_path / "pairs.parquet")
    lines = read_pairs(tmp_path / "pairs.parquet", {})[1]
    assert not find_faults(lines.rows, record_type("preference"))
    assert (lines.rows[0][1]["price"], lines.rows[0][1]["asked"][:10]) == ("1.5", "2024-01-02")


def test_a_table_json_lines_under_another_name_and_arrow_are_read(tmp_path: Path) -> None:
    import pyarrow

    row = {"prompt": 'Why, "so"?\n', "chosen": "Sí 🙂.", "rejected": "No."}
    (tmp_path / "pairs.csv").write_bytes(
        b"\xef\xbb\xbf" + 'prompt,chosen,rejected,label\r\n"Why, ""so""?\n",Sí 🙂.,No.,\r\n'.encode()
    )
    (tmp_path / "pairs.tsv").write_text('prompt\tchosen\trejected\n"Why, ""so""?\n"\tSí 🙂.\tNo.\n')
    (tmp_path / "lines.json").write_text(f"{json.dumps(row)}\r\n{json.dumps(row)}\r\n")
    (tmp_path / "pairs.json").write_text("\ufeff" + json.dumps({"data": [row]}))
    (tmp_path / "pairs.json.gz").write_bytes(gzip.compress(json.dumps([row]).encode()))
    with pyarrow.OSFile(str(tmp_path / "pairs.arrow"), "wb") as sink:
        table = pyarrow.Table.from_pylist([row])
        with pyarrow.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    for name in ("pairs.csv", "pairs.tsv", "lines.json", "pairs.json", "pairs.json.gz", "pairs.arrow"):
        record = records(tmp_path / name)[0]
        assert {key: record[key] for key in row} == row, name


#: Texts that other readers take for numbers, gaps, lists or marks of a dialogue, and texts without blanks.
TEXTS = st.sampled_from(
    ("None", "NA", "nan", "007", "1e400", "true", "[]", "[1, 2]", '{"n": 0}', '[{"n": 0}]', "['a']", "'quoted\"",
     "a,b\tc", "two\nlines\r\n", "天空是蓝色的。", "### Response:", "Human: Who?", "<|im_end|>", "\ufeffx", "🙂\u200d",
     "12", "10", "it's", "null")
) | st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(str.strip)  # fmt: skip


@st.composite
def dialogues(draw: st.DrawFn) -> tuple[list[dict[str, str]], str, str]:
    """A dialogue with an odd number of turns, perhaps behind a system text, and two answers."""
    texts = draw(st.lists(TEXTS, min_size=1, max_size=3).filter(lambda found: len(found) % 2))
    turns = [(assistant if place % 2 else user)(text) for place, text in enumerate(texts)]
    system = [{"role": "system", "content": text} for text in draw(st.lists(TEXTS, max_size=1))]
    chosen, rejected = draw(st.lists(TEXTS, min_size=2, max_size=2, unique_by=str.strip))
    return [*system, *turns], chosen, rejected


def forms(dialogue: list[dict[str, str]], chosen: str, rejected: str) -> Iterator[dict[str, Any]]:
    """Rows in which a dialogue and two answers are written."""
    system, turns = (dialogue[0]["content"], dialogue[1:]) if dialogue[0]["role"] == "system" else (None, dialogue)
    answers = {"chosen": [assistant(chosen)], "rejected": [assistant(rejected)]}
    names = {"user": "human", "assistant": "gpt", "system": "system"}
    share = [{"from": names[turn["role"]], "value": turn["content"], "weight": 1} for turn in dialogue]
    yield {"prompt": dialogue, **answers}
    yield {"prompt": dialogue, "chosen": chosen, "rejected": rejected}
    yield {"prompt": dialogue, **{name: [*turns, *answer] for name, answer in answers.items()}}
    yield {name: [{**turn, "id": f"{name}-{place}"} for place, turn in enumerate([*dialogue, *answer])]
           for name, answer in answers.items()}  # fmt: skip
    yield {"system": system, **{name: [*turns, *answer] for name, answer in answers.items()}}
    yield {"system_prompt": [dialogue[0]] if system else None, "prompt": turns, **answers}
    yield {
        "conversations": share,
        "chosen": {"from": "gpt", "value": chosen},
        "rejected": {"from": "gpt", "value": rejected},
    }
    yield {"input": {"messages": dialogue, "tools": []}, "preferred_output": answers["chosen"],
           "non_preferred_output": answers["rejected"]}  # fmt: skip
    yield {"context": dialogue, "response1": rejected, "response2": chosen, "overall_preference": 2}
    yield {"prompt": share, "response_a": {"from": "gpt", "value": chosen},
           "response_b": [{"from": "gpt", "value": rejected}], "winner": "model_a"}  # fmt: skip
    yield {"prompt": {"system": system, "messages": turns}, "output_1": answers["rejected"],
           "output_2": answers["chosen"], "preference": 2}  # fmt: skip
    yield {name: {"system": system, "messages": [*turns, *answer], "tools": "null"} for name, answer in answers.items()}
    if turns[-2:-1]:
        yield {"prompt": dialogue[:-2], **{name: [*turns[-2:], *answer] for name, answer in answers.items()}}
    if len(turns) == 1 and not is_transcript(turns[0]["content"]):
        yield {"system": system, "prompt": turns[0]["content"], "chosen": chosen, "rejected": rejected}
        yield {"system": system, "prompt": turns[0]["content"], **answers}


def is_transcript(text: str) -> bool:
    return len(parse_dialogue(text)) > 1


def write_as(ending: str, file: Path, row: dict[str, Any]) -> Path:
    """Writes a row twice into a file of a format, structures of tables as JSON or as Python prints them."""
    file = file.with_name(f"pairs{ending}")
    if ending.startswith((".csv", ".tsv")):
        printed = repr if ending.endswith("repr") else json.dumps
        file, cells = (
            file.with_suffix(ending[:4]),
            [v if isinstance(v, str) else "" if v is None else printed(v) for v in row.values()],
        )
        with file.open("w", newline="", encoding="utf-8") as stream:
            csv.writer(stream, delimiter="\t" if ending[:4] == ".tsv" else ",").writerows([list(row), cells, cells])
    elif ending == ".parquet":
        write_table(pyarrow.Table.from_pylist([row, row]), file)
    elif ending == ".json":
        file.write_text(json.dumps([row, row]), encoding="utf-8")
    else:
        file.write_bytes(lzma.compress(f"{json.dumps(row, ensure_ascii=False)}\n".encode() * 2))
    return file


@pytest.mark.parametrize("ending", [".jsonl.xz", ".json", ".csv", ".csv.repr", ".tsv", ".parquet"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(found=dialogues())
def test_a_dialogue_and_its_answers_are_the_same_from_every_form_and_file(
    tmp_path: Path, ending: str, found: tuple[list[dict[str, str]], str, str]
) -> None:
    dialogue, chosen, rejected = found
    for row in forms(dialogue, chosen, rejected):
        [record, _] = records(write_as(ending, tmp_path / "x", row))
        read = [(turn["role"], turn["content"].strip()) for turn in prompt_messages(record)]
        assert read == [(turn["role"], turn["content"].strip()) for turn in dialogue], row
        assert (record["chosen"], record["rejected"]) == (chosen, rejected), row


@pytest.mark.parametrize(
    ("before", "chosen", "rejected"),
    [
        ("### Instruction:\nAdd 1 and 9\n\n### Response:\n", "10", "unknown"),
        ("### Instruction:\nAdd 1 and 9\n\n### Response:\n", "10", "11"),
        ("<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n", "Yes", "Yellow"),
        ("天空是什么颜色？答案：", "蓝色。", "绿色。"),
        ("The sky is ", "blue.", "black."),
        ("Zählt das? ", "Ja", "Jain"),
        ("What is 2 - 7? ", "-5", "-7"),
        ("What is pi? ", "3.14", "3.15"),
        ("Is it? ", "it's", "it is"),
        ("Is it? ", "**Yes**", "**No**"),
        ("When? ", "10:30", "10:45"),
        ("Is it? ", "Yes", "Yes."),
        ("하늘은 무슨 색인가요? ", "파란색", "파랑"),
        ("ท้องฟ้าสีอะไรคำตอบ", "ฟ้า", "เขียว"),
        ("空は", "青い", "赤い"),
    ],
)
def test_a_common_beginning_ends_before_the_word_in_which_the_answers_part(
    tmp_path: Path, before: str, chosen: str, rejected: str
) -> None:
    file = write(tmp_path / "pairs.jsonl", {"chosen": before + chosen, "rejected": before + rejected})
    [record] = records(file)
    assert (record["prompt"], record["chosen"], record["rejected"]) == (before.strip(), chosen, rejected)


#: Rows that would lose a text or a label, and why they are refused.
LOST: dict[str, tuple[dict[str, Any], str]] = {
    "tools": ({"prompt": "Why?", "chosen": "So.", "rejected": "No.", "tools": [{"name": "f"}]}, "has tools"),
    "tools of a prompt": (
        {"prompt": {"messages": [user("Why?")], "tools": [{"name": "f"}]}, **SAID}, "has tools"
    ),
    "a call of a tool": (
        {"prompt": [user("Why?")], **SAID, "chosen": [{**assistant("So."), "tool_calls": [{"id": "1"}]}]},
        "chosen does not end with a text of the assistant",
    ),
    "a transcript that ends with a human turn": (
        {"chosen": f"{HUMAN} So.\n\nHuman: Thanks", "rejected": f"{HUMAN} No."},
        "chosen does not end with a text of the assistant",
    ),
    "another prompt": ({"prompt": "Who?", **WHOLE}, "the prompt is not the dialogue before the answers"),
    "two system texts": (
        {"system": "Be kind.", "prompt": [{"role": "system", "content": "Be rude."}, user("Why?")], **SAID},
        "the system text is not that of the dialogue",
    ),
    "a system text in another form": (
        {"system": {"text": "Be kind."}, "prompt": "Why?", "chosen": "So.", "rejected": "No."}, "system is not a text"
    ),
    "an answer that is the beginning of the other one": (
        {"chosen": "It is so.", "rejected": "It is so. Or not."}, "missing|empty"
    ),
    "an answer to a turn before the last": (
        {"prompt": DIALOGUE, "chosen": [user("Hi"), assistant("So.")], "rejected": [user("Hi"), assistant("No.")]},
        "the prompt is not the dialogue before the answers",
    ),
    **{f"a prompt that is {prompt!r}": ({"prompt": prompt, **SAID}, "the prompt is neither a text nor messages")
       for prompt in (12, 0, ["Why?"], {"text": "Why?"}, '["Why?", "How?"]')},
    "prompts of several turns as text": (
        {"prompt": '["Why?", "And?"]', "response_a": '["So.", "So."]', "response_b": '["No.", "No."]',
         "winner_model_a": 1, "winner_model_b": 0},
        "the prompt is neither a text nor messages",
    ),
    "a part without text": (
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": None}]}], **SAID},
        "a message of user is not a text",
    ),
    "tools beside an answer": ({"prompt": "Why?", **{
        name: {"messages": turns, "tools": [{"name": "f"}]} for name, turns in SAID.items()}}, "has tools"),
    "messages whose keys are there twice": (
        {"prompt": "Why?", **dict.fromkeys(SAID, '[{"role": "user", "role": "assistant", "content": "x"}]')},
        "cannot be read",
    ),
    "literals that Python joins": (
        {"prompt": "Why?", **dict.fromkeys(SAID, "[{'role': 'assistant', 'content': 'So' '.'}]")}, "cannot be read"
    ),
    "lists as numpy prints them": (
        {"prompt": "Why?", **{name: f"[{user('Why?')}\n {turns[0]}]" for name, turns in SAID.items()}}, "cannot be read"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_row_that_would_lose_a_text_is_refused(tmp_path: Path, name: str) -> None:
    row, said = LOST[name]
    good = {key: value for key, value in ROWS["UltraFeedback, binarised"].items() if key in ("prompt", *SAID)}
    lines = read_pairs(write(tmp_path / "pairs.jsonl", *[row] * 3, good), {}).lines
    faults = [*lines.broken, *find_faults(lines.rows, record_type("preference"))]
    reasons = {fault.reason for fault in faults if fault.row < 4}
    assert [fault.row for fault in faults if fault.row < 4] == [1, 2, 3]
    assert all(re.search(said, reason) for reason in reasons), reasons


def test_columns_and_keys_of_messages_that_are_not_read_are_named(tmp_path: Path) -> None:
    row = {
        "prompt_id": "f0",
        "label": 1,
        "messages": [],
        **WHOLE,
        "chosen": [{**turn, "id": 1} for turn in WHOLE["chosen"]],
    }
    assert read_pairs(write(tmp_path / "pairs.jsonl", row), {}).unread == [
        "prompt_id",
        "label",
        "messages",
        "chosen[].id",
    ]
    beside = {name: {"messages": turns, "system": "Be kind.", "seed": 1} for name, turns in SAID.items()}
    asked = {"question": {"full_text": "Why?", "dataset": "x"}, **SAID}
    plain_vote = row_of("an arena's votes")
    voted = {**plain_vote, "chosen": "So.", "rejected": "No.", "answers": [{"text": "x", "n": 1}]}
    listed = {**row_of("UltraFeedback"), "answers": []}
    named: list[tuple[dict[str, Any], list[str]]] = [
        ({"prompt": "Why?", **beside}, ["chosen.seed", "rejected.seed"]),
        (asked, ["prompt.dataset"]),
        ({**SAID, "prompt": "Why?", "history": [{**user("x"), "n": 1}]}, ["history"]),
        (voted, ["chosen", "rejected", "answers"]),
        (listed, ["answers"]),
    ]
    for one, expected in named:
        file = write(tmp_path / "pairs.jsonl", one, plain_vote if one is voted else one)
        assert read_pairs(file, {}).unread == expected, one


def test_a_column_that_is_not_read_and_cells_without_a_value_cost_no_row(tmp_path: Path) -> None:
    for column in (
        {"responses": "[1, 2"}, {"tools": "null"}, {"tools": "{}"}, {"tools": False}, {"tools": "None"},
        {"image": b"\xff\xd8"}, {"prompt_id": b"a1"},
    ):  # fmt: skip
        row = {**row_of("TRL's conversational pair"), **column}
        write_table(pyarrow.Table.from_pylist([row, row]), tmp_path / "pairs.parquet")
        found = read_pairs(tmp_path / "pairs.parquet", {})
        assert (len(found.lines.rows), found.lines.broken) == (2, []), column
        assert found.unread == [name for name in column if name != "tools"]
    systems = json.dumps([{"role": "system", "content": "Be kind."}])
    asked = [{**row_of("TRL's plain pair"), "system": text} for text in (systems, systems, "null", " None")]
    assert [len(prompt_messages(record)) for record in records(write(tmp_path / "x.jsonl", *asked))] == [2, 2, 1, 1]
    broken = [{**asked[0], "prompt": "[{'role': 'x', 'content'", "chosen": "[{'role': 'x', 'content'"}] * 2
    texts = {name: json.dumps(turns) for name, turns in row_of("TRL's conversational pair").items()}
    lines = read_pairs(write(tmp_path / "x.jsonl", *[texts] * 3, *broken), {}).lines
    assert [bad.row for bad in lines.broken] == [4, 5]


def test_scores_of_a_table_are_numbers_and_bytes_are_texts(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("prompt,chosen,rejected,score_chosen,score_rejected\nWhy?,So.,No.,1.5,high\n")
    [record] = records(tmp_path / "pairs.csv")
    assert (record["score_chosen"], record["score_rejected"]) == (1.5, "high")
    row = {name: text.encode() for name, text in row_of("TRL's plain pair").items()}
    write_table(pyarrow.Table.from_pylist([row]), tmp_path / "pairs.parquet")
    assert [records(tmp_path / "pairs.parquet")[0][name] for name in ("prompt", "chosen", "rejected")] == [*PAIR]
    write_table(pyarrow.Table.from_pylist([{**row, "chosen": b"\xff"}]), tmp_path / "pairs.parquet")
    with pytest.raises(DataError, match="unknown format"):
        records(tmp_path / "pairs.parquet")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("pairs.csv", b"prompt,chosen,rejected\nWhy?,So.\n", "not as many cells as columns"),
        ("pairs.csv", b"prompt,chosen\n\xff\xfe,x\n", "not UTF-8"),
        ("pairs.csv", b"", "the file has no rows"),
        ("pairs.csv", b"prompt,chosen,chosen\na,b,c\n", "field 'chosen': several columns have this name"),
        ("pairs.csv", b'prompt,chosen\n"He" said,x\n', "row 1: not readable as a table"),
        ("pairs.json", b'[{"n": 1, "o": [{"role": "a", "role": "b"}]}]', "row 1, field 'role': set twice"),
        ("pairs.json", b'{"prompt": "x"}', "not a list of rows"),
        ("pairs.json", b'{"data": [], "data": []}', "not a list of rows"),
        ("pairs.json", b"{broken", "not valid JSON"),
        ("pairs.json.gz", b"\x1f\x8b[]", "cannot be read"),
        ("pairs.parquet", b"PAR1", "not readable as Parquet"),
        ("pairs.parquet.gz", gzip.compress(b"PAR1", mtime=0), "not readable as Parquet"),
        ("pairs.parquet.gz", gzip.compress(b"PAR1", mtime=0)[:-9], "cannot be read"),
        ("pairs.jsonl.bz2", b"BZh9" + bytes(9), "damaged.*Download it again"),
        ("pairs.jsonl.zst", b"\x28\xb5\x2f\xfd" + bytes(9), "damaged.*Download it again"),
        ("pairs.arrow", b"x", "not readable as Arrow"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_message(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=said):
        records(tmp_path / name)


@pytest.mark.parametrize("name", ["SHP", "WebGPT", "HelpSteer2", "an arena", "Nectar", "UltraFeedback"])
def test_a_row_that_prefers_no_answer_is_left_out_and_one_without_a_verdict_is_a_fault(
    tmp_path: Path, name: str
) -> None:
    row = row_of(name)
    same: dict[str, dict[str, Any]] = {
        "WebGPT": {"score_0": 0.5},
        "HelpSteer2": {"preference_strength": 0},
        "an arena": {"winner": "tie (bothbad)"},
        "Nectar": {"answers": [{**one, "rank": 1.0} for one in row.get("answers", ())]},
        "UltraFeedback": {"completions": [{**one, "overall_score": 2} for one in row.get("completions", ())]},
        "SHP": {"labels": 7},
    }
    without = [{**row, "labels": float("nan")}] if name == "SHP" else []
    lines = read_pairs(write(tmp_path / "pairs.jsonl", row, row, {**row, **same[name]}, *without), {})[1]
    faults = [*lines.broken, *find_faults(lines.rows, record_type("preference"))]
    said = "no verdict that says which answer is better" if name == "SHP" else "no answer is preferred"
    assert [(fault.row, fault.reason) for fault in faults] == [(3, said), *([(4, said)] * len(without))]


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
    ("wrong", "said"),
    [
        ({"rejected": [user("No.")]}, "rejected does not end with a text of the assistant"),
        ({"chosen": [user("Who?"), assistant("So.")]}, "do not continue the same dialogue"),
        ({"prompt": [assistant("Why?")]}, "does not end with a message of the user"),
        (
            {"prompt": [user("Why?"), {"role": "tool", "content": "42"}]},
            "a message of tool is not a text of system, user or assistant",
        ),
        (row_of("TRL's plain pair"), "not in the format of the file's other rows"),
        ({"rejected": [assistant("So. ")]}, "identical"),
    ],
)
def test_a_row_that_does_not_fit_its_file_is_a_fault(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    good = row_of("TRL's conversational pair")
    lines = read_pairs(write(tmp_path / "pairs.jsonl", good, {**good, **wrong}), {})[1]
    faults = [*lines.broken, *find_faults(lines.rows, record_type("preference"))]
    assert [fault.row for fault in faults] == [2]
    assert said in faults[0].reason


def test_the_format_that_most_rows_fit_is_read(tmp_path: Path) -> None:
    safe = {"prompt": "Why?", "response_0": "So.", "response_1": "No.", "better_response_id": 0}
    both = {**safe, "chosen": "So.", "rejected": "No."}
    title, lines, _ = read_pairs(write(tmp_path / "safe.jsonl", *[both] * 12, *[safe] * 8), {})
    assert (title, len(lines.rows)) == ("PKU-SafeRLHF", 20)
    talk = {name: f"Human: Why?\n\nAssistant: {answer}" for name, answer in (("chosen", "So."), ("rejected", "No."))}
    plain = {"chosen": "It is so.", "rejected": "It is not."}
    title, lines, _ = read_pairs(write(tmp_path / "talk.jsonl", *[talk] * 11, *[plain] * 9), {})
    assert (title, len(lines.rows)) == (COMMON_BEGINNING, 20)


def test_held_out_prompts_are_apart_and_the_same_each_time() -> None:
    rows = [{"prompt": f"{number % 40}", "id": str(number)} for number in range(100)]
    train, test = split_by_prompt(rows, 0.1, 1000)
    assert {row["prompt"] for row in train} & {row["prompt"] for row in test} == set()
    assert len({row["prompt"] for row in test}) == 4
    assert len(train) + len(test) == 100
    assert split_by_prompt(rows, 0.1, 1000) == (train, test)
    assert len({row["prompt"] for row in split_by_prompt(rows, 0.9, 7)[1]}) == 7
