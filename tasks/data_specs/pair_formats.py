"""Preference pairs in the formats that others publish, as records of kind `preference`.

TRL's standard and conversational pairs, with a prompt of their own or an implicit one; UltraFeedback, binarised or
with its completions; HH-RLHF's transcripts; ShareGPT's and OpenAI's messages; two answers with a verdict and lists of
answers with ranks (`compared_answers`). A row that its file's format does not fit becomes a record that the schema
refuses, so that it is quarantined with a reason; so is a row that prefers no answer.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from rlhf_core.data.dialogue import render_dialogue
from rlhf_core.data.jsonl import BadRow, Lines
from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError
from tasks.data_specs.compared_answers import TWO_ANSWERS, has_list, pair_from_list
from tasks.data_specs.pair_files import read_rows

#: Names of columns that are read as ours, the first that a row has.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("instruction", "question", "query", "input", "conversations", "conversation"),
    "chosen": (
        "chosen_response", "response_chosen", "preferred", "preferred_output", "accepted", "better", "response_j",
    ),
    "rejected": (
        "rejected_response", "response_rejected", "dispreferred", "non_preferred_output", "worse", "response_k",
    ),
}  # fmt: skip
#: Fields of pairs elsewhere that have another meaning or form here.
_NOT_OURS = (
    "messages", "label", "preference", "margin", "completions", "history", "system", "answers", "responses",
    "conversation_a", "conversation_b",
)  # fmt: skip
#: Fields that may have messages.
_DIALOGUES = (*ALIASES, "context", "conversation_a", "conversation_b")
#: Roles in ShareGPT's messages.
_ROLES = {"human": "user", "gpt": "assistant"}
#: Why a row is not a pair.
_ANOTHER = "not in the format of the file's other rows"
_OPENINGS = "the answers do not continue the same dialogue"
#: Rows by which a file's format is recognised.
_LOOKED_AT = 20
_ANSWER = "\n\nAssistant:"


@dataclass(frozen=True)
class PairFormat:
    """A format of preference pairs.

    Args:
        title: for people.
        fits: whether a row is of this format.
        convert: a row's prompt, chosen and rejected, and `messages` where the prompt has several; or why the row is
            not a pair.
    """

    title: str
    fits: Callable[[Record], bool]
    convert: Callable[[Record], Record | str]


def _plain_messages(value: Any) -> Any:
    """Returns messages as lists of {role, content}: ShareGPT's {from, value}, OpenAI's {messages: [...]}, one message
    alone, contents in parts; WebGPT's text of a question; any other value as it is."""
    if isinstance(value, Mapping):
        value = value.get("full_text", value)
    if isinstance(value, Mapping):
        value = value["messages"] if "messages" in value else [value] if {"role", "from"} & value.keys() else value
    if not _messages(value):
        return value
    return [_plain_message(turn) for turn in value]


def _plain_message(turn: Mapping[str, Any]) -> dict[str, Any]:
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        content = "".join(str(part.get("text")) for part in content)
    return {**turn, "role": _ROLES.get(str(role), role), "content": content}


def _with_system(row: Record) -> Record:
    """Returns a pair of texts; one with a system text has it as the first message."""
    made: Record = {name: row[name] for name in ("prompt", "chosen", "rejected")}
    system = row.get("system")
    if not isinstance(system, str) or not system.strip():
        return made
    messages = [{"role": "system", "content": system}, {"role": "user", "content": row["prompt"]}]
    return {**made, "prompt": render_dialogue(messages), "messages": messages}


def _texts(row: Record, *names: str) -> bool:
    return all(isinstance(row.get(name), str) for name in names)


def _messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def _of_messages(row: Record) -> Record | str:
    """Returns a pair whose answers are messages, alone or behind those of the prompt."""
    before, answers = [], []
    for name in ("chosen", "rejected"):
        *opening, last = row[name]
        if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            return f"{name} does not end with a text of the assistant"
        before.append(opening)
        answers.append(last["content"])
    if before[0] != before[1]:
        return _OPENINGS
    stated = row.get("prompt")
    turns: list[Any] = before[0] or (stated if _messages(stated) else [{"role": "user", "content": stated}])  # type: ignore[assignment]
    for turn in turns:
        if turn.get("role") not in ("system", "user", "assistant") or not isinstance(turn.get("content"), str):
            return f"a message of {str(turn.get('role'))[:20]} is not a text of system, user or assistant"
    if turns[-1]["role"] != "user":
        return "the prompt does not end with a message of the user"
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    made: Record = {"chosen": answers[0], "rejected": answers[1]}
    if len(messages) == 1:
        return {"prompt": messages[0]["content"], **made}
    return {"prompt": render_dialogue(messages), "messages": messages, **made}


def _of_transcripts(row: Record) -> Record | str:
    """Returns a pair of HH-RLHF: both transcripts up to the last answer are the prompt."""
    (opening, _, chosen), (other, _, rejected) = (row[name].rpartition(_ANSWER) for name in ("chosen", "rejected"))
    if opening.strip() != other.strip():
        return _OPENINGS
    return {"prompt": f"{opening.strip()}{_ANSWER}", "chosen": chosen.strip(), "rejected": rejected.strip()}


def _is_transcript(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith(("Human:", "System:")) and _ANSWER in value


def _of_common_beginning(row: Record) -> Record:
    """Returns a pair without a prompt: what both texts begin with, up to a blank, is the prompt; as TRL has it."""
    both = zip(row["chosen"], row["rejected"], strict=False)
    common = "".join(one for one, _ in takewhile(lambda letters: letters[0] == letters[1], both))
    end = common.rfind(" ") + 1
    return {"prompt": common[:end].strip(), "chosen": row["chosen"][end:], "rejected": row["rejected"][end:]}


def _paired(row: Record) -> Record | str:
    """Returns what a pair of compared answers is by its own form: messages, transcripts or texts."""
    for each in PAIRS:
        if each.fits(row):
            return each.convert(row)
    return _ANOTHER


def _of_compared(convert: Callable[[Record], Record | str]) -> Callable[[Record], Record | str]:
    """Returns the conversion of rows that say which of their answers is better."""

    def made(row: Record) -> Record | str:
        found = convert(row)
        if isinstance(found, str):
            return found
        if _messages(found["prompt"]) and found["prompt"] in (found["chosen"], found["rejected"]):
            found.pop("prompt")  # whole conversations, which begin alike
        scores = {name: found[name] for name in found if name.startswith("score_")}
        pair = _paired({**{name: row[name] for name in ("system",) if name in row}, **found})
        return pair if isinstance(pair, str) else {**pair, **scores}

    return made


#: The format of texts whose prompt no column names.
COMMON_BEGINNING = PairFormat(
    "texts with a common beginning",
    lambda row: "prompt" not in row and _texts(row, "chosen", "rejected"),
    _of_common_beginning,
)
#: Formats of pairs, the most special first.
PAIRS = (
    PairFormat(
        "messages",
        lambda row: _messages(row.get("chosen")) and _messages(row.get("rejected")),
        _of_messages,
    ),
    PairFormat(
        "messages with texts as answers",
        lambda row: _messages(row.get("prompt")) and _texts(row, "chosen", "rejected"),
        lambda row: _of_messages(
            {**row, **{name: [{"role": "assistant", "content": row[name]}] for name in ("chosen", "rejected")}}
        ),
    ),
    PairFormat(
        "transcripts",
        lambda row: "prompt" not in row and all(_is_transcript(row.get(name)) for name in ("chosen", "rejected")),
        _of_transcripts,
    ),
    PairFormat(
        "texts",
        lambda row: _texts(row, "prompt", "chosen", "rejected"),
        _with_system,
    ),
    COMMON_BEGINNING,
)
#: Every format, the most special first.
FORMATS = (
    *PAIRS,
    *(PairFormat(each.title, each.fits, _of_compared(each.convert)) for each in TWO_ANSWERS),
    PairFormat("a list of answers", has_list, _of_compared(pair_from_list)),
)
EXPECTED = """Expected one of
  prompt, chosen, rejected: texts, or lists of {role, content} messages (TRL)
  chosen, rejected: both with the prompt, as messages (UltraFeedback) or as texts "Human: ... Assistant: ..." (HH)
  prompt, two answers and which is better (SHP, PKU-SafeRLHF, HelpSteer, WebGPT, arenas)
  prompt, answers or completions: [{answer, rank or score}, ...] (Nectar, UltraFeedback)
Columns of other names are given as --column chosen=their_name"""


def read_pairs(file: Path, columns: Mapping[str, str]) -> tuple[PairFormat, Lines]:
    """Returns the format of a file of preference pairs, and its rows as records that are yet to be screened.

    Args:
        file: see `pair_files`.
        columns: {our field: their column}, where names differ.

    Raises:
        DataError: a file that cannot be read, or rows of no known format; shows the first row and what was expected.
    """
    lines = read_rows(file)
    rows = [(number, _renamed(row, columns)) for number, row in lines.rows]
    for name, column in columns.items():
        if rows and not any(name in row for _, row in rows):
            raise DataError(
                f"no row has the column '{column}'", file=str(file), field=name,
                remedy=f"Columns: {', '.join(lines.rows[0][1])}",
            )  # fmt: skip
    fitting = {each.title: sum(each.fits(row) for _, row in rows[:_LOOKED_AT]) for each in FORMATS}
    found = max(FORMATS, key=lambda each: fitting[each.title])
    if not fitting[found.title]:
        _refuse(lines)
    made: list[tuple[int, Record]] = []
    broken, known = list(lines.broken), set[str]()
    for number, row in rows:
        pair = found.convert(row) if found.fits(row) else _not_fitting(row)
        if isinstance(pair, str):
            broken.append(BadRow(number, "", pair, row))
            continue
        record = _record(pair, row, file, number)
        if record["id"] in known:  # several pairs of one prompt often have its id
            record["id"] = f"{record['id']}-{number}"
        known.add(record["id"])
        made.append((number, record))
    return found, Lines(str(file), made, broken)


def prompt_remedy(file: Path, columns: Mapping[str, str]) -> str:
    """Returns how to name the prompts of a file whose answers begin alike in nothing: its columns and the option.

    Args:
        file: of pairs in the format `COMMON_BEGINNING`.
        columns: {our field: their column}, as given.
    """
    taken = {"chosen", "rejected", *columns.values()}
    found = [name for name in read_rows(file).rows[0][1] if name not in taken]
    named = f"the other columns are {', '.join(found)}" if found else "there is no other column"
    return f"No column is called prompt; {named}: name the one with the prompts by --column prompt=NAME"


def _renamed(row: Record, columns: Mapping[str, str]) -> Record:
    """Returns a row with our names of its columns, without those that have no value."""
    made = {name: value for name, value in row.items() if value is not None and not _is_gap(value)}
    if _texts(made, "instruction", "input") and "prompt" not in made and "prompt" not in columns:
        made["instruction"] = "\n\n".join(text for text in (made["instruction"], made["input"]) if text.strip())
    for name, aliases in ALIASES.items():
        wanted = (columns[name],) if name in columns else () if name in made else aliases
        if (theirs := next((alias for alias in wanted if alias in made), None)) is not None:
            made[name] = made.pop(theirs)
    return {name: _plain_messages(value) if name in _DIALOGUES else value for name, value in made.items()}


def _not_fitting(row: Record) -> Record | str:
    """Returns the row as it is where a text of a pair is missing, for the schema to name it; else why it is not one."""
    texts = {name: row.get(name) for name in ("prompt", "chosen", "rejected")}
    lacking = any(value is None for value in texts.values()) and not any(map(_messages, texts.values()))
    return {name: value for name, value in texts.items() if value is not None} if lacking else _ANOTHER


def _is_gap(value: Any) -> bool:
    """Returns whether a value is a table's NaN, which stands for none."""
    return isinstance(value, float) and not math.isfinite(value)


def _record(made: Record, row: Record, file: Path, number: int) -> Record:
    """Returns a row as a record; without the fields that its format does not give.

    Args:
        made: what its format gives.
    """
    own = {name: value for name, value in row.items() if name not in (*ALIASES, *_NOT_OURS)}
    name, source = row.get("id"), row.get("source")
    identity = str(name) if isinstance(name, str | int) and str(name).strip() else f"{file.stem}-{number:06d}"
    return {**own, **made, "id": identity, "source": source if isinstance(source, str) and source else file.name}


def _refuse(lines: Lines) -> NoReturn:
    """Refuses rows of no known format.

    Raises:
        DataError: shows the first row and what was expected.
    """
    if not lines.rows:
        first = lines.broken[0] if lines.broken else None
        problem = "the file has no rows" if first is None else first.reason
        raise DataError(problem, file=lines.file, row=None if first is None else first.row, remedy=EXPECTED)
    number, row = lines.rows[0]
    shown = ", ".join(f"{name}: {_short(value)}" for name, value in list(row.items())[:6])
    raise DataError(
        f"unknown format of preference pairs. The row is {{{shown}}}", file=lines.file, row=number, remedy=EXPECTED
    )


def _short(value: Any, most: int = 40) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= most else f"{text[: most - 3]}..."


def split_by_prompt(records: Sequence[Record], share: float, most: int) -> tuple[list[Record], list[Record]]:
    """Returns records to train on and held-out ones, which have no prompt in common; the same ones each time.

    Args:
        records: of one or several files.
        share: of the prompts that is held out, at least one.
        most: prompts held out.
    """
    prompts = list(dict.fromkeys(str(record["prompt"]) for record in records))
    count = min(most, max(1, round(share * len(prompts))))
    held = set(random.Random("held-out prompts").sample(prompts, min(count, len(prompts))))
    return [row for row in records if row["prompt"] not in held], [row for row in records if row["prompt"] in held]
