"""Preference pairs in the formats that others publish, as records of kind `preference`.

TRL's standard and conversational pairs, with a prompt of their own or an implicit one; UltraFeedback, binarised or
with its completions; HH-RLHF's transcripts; ShareGPT's and OpenAI's messages; two answers with a verdict (SHP,
PKU-SafeRLHF, WebGPT, HelpSteer, AlpacaFarm, arenas) and lists of answers with ranks or scores (Nectar, Stack Exchange),
of which the best and the worst count.

A text stays a text: whether a column has messages is decided by the column, not by the cell. A row that does not fit
the format of its file becomes a record that the schema refuses, so that it is quarantined with a reason; so is a row
that prefers no answer. Columns that are not read are named.
"""

from __future__ import annotations

import ast
import json
import math
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rlhf_core.data.dialogue import Message, prompt_messages, render_dialogue
from rlhf_core.data.jsonl import BadRow, Lines
from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError
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
    "system": ("system_prompt", "system_message"),
}  # fmt: skip
#: Fields of pairs elsewhere that have another meaning or form here.
_NOT_OURS = (
    "messages", "label", "preference", "margin", "completions", "history", "answers", "responses", "conversation_a",
    "conversation_b", "tools",
)  # fmt: skip
#: Fields that may have messages.
_DIALOGUES = (*ALIASES, "context", "conversation_a", "conversation_b")
#: Roles in ShareGPT's messages.
_ROLES = {"human": "user", "gpt": "assistant"}
#: Why a row is not a pair.
NO_PREFERENCE, NO_VERDICT = "no answer is preferred", "no verdict that says which answer is better"
_ANOTHER = "not in the format of the file's other rows"
_OPENINGS = "the answers do not continue the same dialogue"
_TWO_SYSTEMS = "the system text is not that of the dialogue"
_UNREADABLE = "messages or a list as text that cannot be read; save the file as JSON Lines or Parquet"
_TOOLS, _NO_TOOLS = "has tools, which a prompt here cannot offer", (None, "", [], {})
#: Format of texts whose prompt no column names.
COMMON_BEGINNING = "texts with a common beginning"
#: Rows by which a file's format is recognised.
_LOOKED_AT = 20
_ANSWER, _HUMAN = "\n\nAssistant:", "\n\nHuman:"
#: Beginning of a text that may have messages, and keys that it has then.
_BEGINS = re.compile(r"\s*\[?\s*\{\s*[\"']")
_KEYS = ("role", "content"), ("from", "value"), ("full_text",)
#: Keys of a message that are read; those of calls refuse it.
_MESSAGE_KEYS, _CALLS = {"role", "from", "content", "value"}, ("tool_calls", "function_call")


# --- pairs -------------------------------------------------------------------------------------------------------


def _messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def _is_transcript(value: str) -> bool:
    return value.lstrip().startswith(("Human:", "System:")) and _ANSWER in value


def _form(row: Record) -> str | None:
    """Returns the format of a row with both answers, the most special one; None for another row."""
    sides = row.get("chosen"), row.get("rejected")
    if all(map(_messages, sides)):
        return "messages"
    if not all(isinstance(side, str) for side in sides):
        return None
    if "prompt" not in row:
        return "transcripts" if all(map(_is_transcript, sides)) else COMMON_BEGINNING  # type: ignore[arg-type]
    if _messages(row["prompt"]):
        return "messages with texts as answers"
    return "texts" if isinstance(row["prompt"], str) else None


def _pair(row: Record, form: str | None = None) -> Record | str:
    """Returns the prompt, chosen and rejected of a row with both answers, with `messages` where the prompt has several;
    or why the row is not a pair. It is read in its most special format, if none is named."""
    form = form or _form(row)
    if form is None:
        return _ANOTHER
    made: Record | str = _answers(row)
    if form == "transcripts":
        made = _of_transcripts(row)
    elif form == COMMON_BEGINNING:
        made = _parted(row["chosen"], row["rejected"])
    elif form == "texts":
        made = {"prompt": row["prompt"], **made}  # type: ignore[dict-item]
    else:
        made = _of_messages(row)
    return made if isinstance(made, str) else _with_system(made, row.get("system"))


def _answers(row: Record) -> Record:
    return {name: row[name] for name in ("chosen", "rejected")}


def _of_transcripts(row: Record) -> Record | str:
    """Returns the pair of two transcripts of HH-RLHF, which have in common what is before the last answer."""
    (opening, _, chosen), (other, _, rejected) = (row[name].rpartition(_ANSWER) for name in ("chosen", "rejected"))
    for name, answer in (("chosen", chosen), ("rejected", rejected)):
        if _HUMAN in answer:
            return f"{name} does not end with a text of the assistant"
    if opening.strip() != other.strip():
        return _OPENINGS
    return {"prompt": f"{opening.strip()}{_ANSWER}", "chosen": chosen.strip(), "rejected": rejected.strip()}


def _parted(chosen: str, rejected: str) -> Record:
    """Returns the pair of two texts whose prompt is what both begin with, up to the word in which they part."""
    alike = zip(chosen, rejected, strict=False)
    end = next((place for place, (one, other) in enumerate(alike) if one != other), min(len(chosen), len(rejected)))
    while any(_is_inside_word(text, end) for text in (chosen, rejected)):
        end -= 1
    return {"prompt": chosen[:end].strip(), "chosen": chosen[end:], "rejected": rejected[end:]}


def _is_inside_word(text: str, place: int) -> bool:
    """Returns whether a place is between two characters of one word; in scripts without blanks, such as Chinese, each
    character is a word."""
    return 0 < place < len(text) and all(map(_of_word, text[place - 1 : place + 1]))


def _of_word(one: str) -> bool:
    return unicodedata.category(one)[0] in "LNM" and unicodedata.east_asian_width(one) not in "WF"


def _with_system(pair: Record, system: Any) -> Record | str:
    """Returns a pair whose dialogue begins with a system text, if there is one; it may do so already."""
    if _messages(system) and len(system) == 1 and system[0]["role"] == "system":
        system = system[0]["content"]
    if system is None or (isinstance(system, str) and not system.strip()) or not str(pair["prompt"]).strip():
        return pair
    if not isinstance(system, str):
        return "system is not a text"
    messages = prompt_messages(pair)
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    elif messages[0]["content"].strip() != system.strip():
        return _TWO_SYSTEMS
    return {**pair, "prompt": render_dialogue(messages), "messages": messages}


def _of_messages(row: Record) -> Record | str:
    """Returns a pair whose answers are messages, alone or behind those of the prompt, or answer its messages."""
    before, answers = [], []
    for name, answer in _answers(row).items():
        *opening, last = answer if isinstance(answer, list) else [{"role": "assistant", "content": answer}]
        if last["role"] != "assistant" or not isinstance(last["content"], str):
            return f"{name} does not end with a text of the assistant"
        before.append(opening)
        answers.append(last["content"])
    if before[0] != before[1]:
        return _OPENINGS
    stated = row.get("prompt")
    if isinstance(stated, str):
        stated = prompt_messages({"prompt": stated}) if stated.strip() else []
    for turn in (*(stated or ()), *before[0]):
        if turn["role"] not in ("system", "user", "assistant") or not isinstance(turn["content"], str):
            return f"a message of {str(turn['role'])[:20]} is not a text of system, user or assistant"
    messages = _joined(stated or [], before[0])
    if isinstance(messages, str):
        return messages
    if not messages or messages[-1]["role"] != "user":
        return "the prompt does not end with a message of the user"
    made: Record = {"chosen": answers[0], "rejected": answers[1]}
    if len(messages) == 1:
        return {"prompt": messages[0]["content"], **made}
    return {"prompt": render_dialogue(messages), "messages": messages, **made}


def _joined(stated: list[Message], opening: list[Message]) -> list[Message] | str:
    """Returns the dialogue that a prompt and the messages before the answers state together: one may repeat a part of
    the other and lack its system text."""
    sides = [(turns[:1], turns[1:]) if turns and turns[0]["role"] == "system" else ([], turns)
             for turns in (stated, opening)]  # fmt: skip
    (own, asked), (other, before) = sides
    if own and other and _bare(own) != _bare(other):
        return _TWO_SYSTEMS
    short, long = sorted((asked, before), key=len)
    if _bare(short) not in (_bare(long[: len(short)]), _bare(long[len(long) - len(short) :])):
        return "the prompt is not the dialogue before the answers"
    return [*(own or other), *long]


def _bare(messages: Iterable[Message]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"].strip()) for message in messages]


# --- several answers ---------------------------------------------------------------------------------------------


def _number(value: Any) -> float:
    """Returns a number, also one that is written as text or as a truth value; NaN for anything else."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except ValueError:
        return math.nan


def _one_of(first: float, second: float) -> Callable[[Any], float]:
    """Returns which side a column names by one of two numbers."""
    return lambda value: {first: 1.0, second: -1.0}.get(_number(value), math.nan)


def _less(value: Any) -> float:
    return -_number(value)


def _difference(one: Any, other: Any) -> float:
    return _number(one) - _number(other)


def _winner(value: Any) -> float:
    """Returns which side an arena's verdict names."""
    said = str(value).strip().lower().removeprefix("model_").removeprefix("response_")
    return {"a": 1.0, "b": -1.0}.get(said, 0.0 if "tie" in said or "both" in said else math.nan)


#: Two answers: title; columns of the prompt and of both answers; columns that say which is better, and their values as
#: a number: above 0 the first is better, below 0 the second, 0 neither; NaN of values that say nothing.
TWO_ANSWERS: tuple[tuple[str, tuple[str, str, str], tuple[str, ...], Callable[..., float]], ...] = (
    ("SHP", ("history", "human_ref_A", "human_ref_B"), ("labels",), _one_of(1, 0)),
    ("PKU-SafeRLHF", ("prompt", "response_0", "response_1"), ("better_response_id",), _one_of(0, 1)),
    ("WebGPT", ("prompt", "answer_0", "answer_1"), ("score_0", "score_1"), _difference),
    ("HelpSteer2", ("prompt", "response_1", "response_2"), ("preference_strength",), _less),
    ("HelpSteer3", ("context", "response1", "response2"), ("overall_preference",), _less),
    ("AlpacaFarm", ("prompt", "output_1", "output_2"), ("preference",), _one_of(1, 2)),
    ("an arena's conversations", ("conversation_a", "conversation_a", "conversation_b"), ("winner",), _winner),
    ("an arena", ("prompt", "response_a", "response_b"), ("winner",), _winner),
    ("an arena's votes", ("prompt", "response_a", "response_b"), ("winner_model_a", "winner_model_b"), _difference),
)
#: A list of answers: its column, and of each answer the text, its rank from the best, or its score.
_LISTS = ("answers", "completions", "responses")
_ANSWER_TEXTS, _RANKS = ("answer", "response", "text", "content"), ("rank",)
_SCORES = ("overall_score", "score", "pm_score")


def _graded(one: Any) -> tuple[float, float | None, str] | None:
    """Returns (how good an answer of a list is, the score that says so, its text); None without text, rank or score."""
    text = next((one[name] for name in _ANSWER_TEXTS if name in one), None) if isinstance(one, Mapping) else None
    if not isinstance(text, str):
        return None
    for names, sign in ((_RANKS, -1.0), (_SCORES, 1.0)):
        for name in names:
            if not math.isnan(value := _number(one.get(name))):
                return sign * value, value if sign > 0 else None, text
    return None


def _graded_list(row: Record) -> list[tuple[float, float | None, str]]:
    """Returns the graded answers of a row's list; none without a prompt or a list of answers with texts."""
    for name in _LISTS if "prompt" in row else ():
        answers: Any = row.get(name)
        if _messages(answers) and (found := [grade for one in answers if (grade := _graded(one)) is not None]):
            return found
    return []


def _of_two(
    row: Record, columns: tuple[str, str, str], verdict: tuple[str, ...], better: Callable[..., float]
) -> Record | str:
    """Returns the pair of two answers and their verdict."""
    prompt, first, second = (row[name] for name in columns)
    side = better(*(row[name] for name in verdict))
    if math.isnan(side) or side == 0:
        return NO_PREFERENCE if side == 0 else NO_VERDICT
    found = {} if prompt in (first, second) and _messages(prompt) else {"prompt": prompt}
    chosen, rejected = (first, second) if side > 0 else (second, first)
    return _pair({**_system(row), **found, "chosen": chosen, "rejected": rejected})


def _system(row: Record) -> Record:
    return {name: row[name] for name in ("system",) if name in row}


def _of_list(row: Record) -> Record | str:
    """Returns the best answer of a row's list beside its worst."""
    found = _graded_list(row)
    if len(found) < 2 or len({shown is None for _, shown, _ in found}) == 2:  # ranks and scores are not compared
        return NO_VERDICT
    (high, shown_high, chosen), (low, shown_low, rejected) = max(found), min(found)
    if high == low:
        return NO_PREFERENCE
    pair = _pair({**_system(row), "prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
    if isinstance(pair, str) or shown_high is None:
        return pair
    return {**pair, "score_chosen": shown_high, "score_rejected": shown_low}


#: Titles of the formats, the most special first.
_TITLES: tuple[str, ...] = ("messages", "messages with texts as answers", "transcripts", "texts", COMMON_BEGINNING)
_LIST_TITLE = "a list of answers"
_TITLES += (*(title for title, *_ in TWO_ANSWERS), _LIST_TITLE)


def _readings(row: Record) -> dict[str, Callable[[], Record | str]]:
    """Returns how a row is read in each format that fits it, by title."""
    found: dict[str, Callable[[], Record | str]] = {}
    if (form := _form(row)) is not None:
        found[form] = partial(_pair, row)
        if form == "transcripts":
            found[COMMON_BEGINNING] = partial(_pair, row, COMMON_BEGINNING)
    for title, columns, verdict, better in TWO_ANSWERS:
        if all(name in row for name in (*columns, *verdict)):
            found[title] = partial(_of_two, row, columns, verdict, better)
    if _graded_list(row):
        found[_LIST_TITLE] = partial(_of_list, row)
    return found


EXPECTED = """Expected one of
  prompt, chosen, rejected: texts, or lists of {role, content} messages (TRL)
  chosen, rejected: both with the prompt, as messages (UltraFeedback) or as texts "Human: ... Assistant: ..." (HH)
  prompt, two answers and which is better (SHP, PKU-SafeRLHF, HelpSteer, WebGPT, arenas)
  prompt, answers or completions: [{answer, rank or score}, ...] (Nectar, UltraFeedback)
Columns of other names are given as --column chosen=their_name"""


# --- files -------------------------------------------------------------------------------------------------------


class PairFile(NamedTuple):
    """A file of preference pairs.

    Attributes:
        title: its format.
        lines: its rows as records that are yet to be screened.
        unread: its columns, and keys of messages (as `chosen[].id`), that are not read.
    """

    title: str
    lines: Lines
    unread: list[str]


def read_pairs(file: Path, columns: Mapping[str, str]) -> PairFile:
    """Returns the pairs of a file.

    Args:
        file: see `pair_files`.
        columns: {our field: their column}, where names differ.

    Raises:
        DataError: a file that cannot be read, or rows of no known format; shows the first row and what was expected.
    """
    lines = read_rows(file)
    named = [(number, _renamed(row, columns)) for number, row in lines.rows]
    for name, column in columns.items():
        if named and not any(name in row for _, row in named):
            raise DataError(
                f"no row has the column '{column}'", file=str(file), field=name,
                remedy=f"Columns: {', '.join(lines.rows[0][1])}",
            )  # fmt: skip
    broken = [*lines.broken, *_parse_structured([row for _, row in named], [number for number, _ in named])]
    wrong = {bad.row for bad in broken}
    rows = [(number, _plain_row(row)) for number, row in named if number not in wrong]
    readings = [_readings(row) for _, row in rows]
    fitting = Counter(title for found in readings[:_LOOKED_AT] for title in found)
    if not fitting:
        _refuse(Lines(lines.file, lines.rows if rows else [], broken))
    title = max(_TITLES, key=fitting.__getitem__)
    made: list[tuple[int, Record]] = []
    known = set[str]()
    for (number, row), found in zip(rows, readings, strict=True):
        pair = found[title]() if title in found else _not_fitting(row)
        if row.get("tools") not in _NO_TOOLS:
            pair = _TOOLS
        if isinstance(pair, str):
            broken.append(BadRow(number, "", pair, row))
            continue
        record = _record(pair, row, file, number)
        while record["id"] in known:  # several pairs of one prompt often have its id
            record["id"] = f"{record['id']}-{number}"
        known.add(record["id"])
        made.append((number, record))
    return PairFile(title, Lines(str(file), made, broken), _unread(named, title))


def _parse_structured(rows: Sequence[Record], numbers: Sequence[int]) -> list[BadRow]:
    """Replaces the texts of columns that have messages, lists of answers or tools as text by what they say; returns the
    rows of which one cannot be read. A column has them where most of its texts look so."""
    broken: list[BadRow] = []
    for name in (*_DIALOGUES, *_LISTS, "tools"):
        texts = [row[name] for row in rows if isinstance(row.get(name), str)]
        looks = _looks_like_messages if name in _DIALOGUES else _looks_like_list
        if 2 * sum(map(looks, texts)) <= len(texts):
            continue
        for number, row in zip(numbers, rows, strict=True):
            if isinstance(text := row.get(name), str):
                row[name] = _structure(text)
                if not isinstance(row[name], list | Mapping):
                    broken.append(BadRow(number, name, _UNREADABLE, {**row, name: text}))
    return broken


def _looks_like_messages(text: str) -> bool:
    quoted = [all(f'"{key}"' in text or f"'{key}'" in text for key in keys) for keys in _KEYS]
    return _BEGINS.match(text) is not None and any(quoted)


def _looks_like_list(text: str) -> bool:
    return text.lstrip().startswith("[")


def _structure(text: str) -> Any:
    """Returns the list or mapping that is written in a text, as JSON or Python writes it; None for another text."""
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _unread(rows: Iterable[tuple[int, Record]], title: str) -> list[str]:
    """Returns the columns of rows, and keys of their messages, that a format does not read."""
    read = {*ALIASES, "id", "source", "tools", "score_chosen", "score_rejected"}
    read |= {name for one, columns, verdict, _ in TWO_ANSWERS if one == title for name in (*columns, *verdict)}
    read |= {*_LISTS} if title == _LIST_TITLE else set()
    found: dict[str, None] = {}
    for _, row in rows:
        for name, value in row.items():
            if name not in read:
                found[name] = None
            elif name in _DIALOGUES and _messages(value):
                keys = {key for turn in value for key, inner in turn.items() if inner is not None}
                found |= dict.fromkeys(f"{name}[].{key}" for key in sorted(keys - _MESSAGE_KEYS - {*_CALLS}))
    return list(found)


def prompt_remedy(file: Path, columns: Mapping[str, str]) -> str:
    """Returns how to name the prompts of a file in the format `COMMON_BEGINNING`: its columns and the option."""
    taken = {"chosen", "rejected", *columns.values()}
    found = [name for name in read_rows(file).rows[0][1] if name not in taken]
    named = f"the other columns are {', '.join(found)}" if found else "there is no other column"
    return f"No column is called prompt; {named}: name the one with the prompts by --column prompt=NAME"


def _renamed(row: Record, columns: Mapping[str, str]) -> Record:
    """Returns a row with our names of its columns, without those that have no value, such as a table's NaN."""
    gaps = {name for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
    made = {name: value for name, value in row.items() if value is not None and name not in gaps}
    asked = [text for text in (made.get("instruction"), made.get("input")) if isinstance(text, str)]
    if len(asked) == 2 and "prompt" not in made and "prompt" not in columns:
        made["instruction"] = "\n\n".join(text for text in asked if text.strip())
        del made["input"]
    for name, aliases in ALIASES.items():
        wanted = (columns[name],) if name in columns else () if name in made else aliases
        if (theirs := next((alias for alias in wanted if alias in made), None)) is not None:
            made[name] = made.pop(theirs)
    return made


def _plain_row(row: Record) -> Record:
    """Returns a row whose messages have a role and a content; tools beside the messages of a prompt become its own."""
    asked = row.get("prompt")
    beside = {"tools": asked["tools"]} if isinstance(asked, Mapping) and asked.get("tools") else {}
    return {name: _plain_messages(value) if name in _DIALOGUES else value for name, value in (row | beside).items()}


def _plain_messages(value: Any) -> Any:
    """Returns messages as lists of {role, content}: ShareGPT's {from, value}, OpenAI's {messages: [...]}, one message
    alone, contents in parts; WebGPT's text of a question; any other value as it is. A call of a tool has no content."""
    if isinstance(value, Mapping):
        value = value.get("full_text", value)
    if isinstance(value, Mapping):
        value = value["messages"] if "messages" in value else [value] if {"role", "from"} & value.keys() else value
    if not _messages(value):
        return value
    plain = []
    for turn in value:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if _messages(content) and all(part.get("type") == "text" for part in content):
            content = "".join(str(part.get("text")) for part in content)
        called = any(turn.get(name) for name in _CALLS)
        plain.append({"role": _ROLES.get(str(role), role), "content": None if called else content})
    return plain


def _not_fitting(row: Record) -> Record | str:
    """Returns the row as it is where a text of a pair is missing, for the schema to name it; else why it is not one."""
    texts = {name: row.get(name) for name in ("prompt", "chosen", "rejected")}
    lacking = any(value is None for value in texts.values()) and not any(map(_messages, texts.values()))
    return {name: value for name, value in texts.items() if value is not None} if lacking else _ANOTHER


def _record(made: Record, row: Record, file: Path, number: int) -> Record:
    """Returns what a row's format gives as a record, with the row's other fields and its id and source."""
    own = {name: value for name, value in row.items() if name not in (*ALIASES, *_NOT_OURS)}
    name, source = row.get("id"), row.get("source")
    identity = str(name) if isinstance(name, str | int | float) and str(name).strip() else f"{file.stem}-{number:06d}"
    return {**own, **made, "id": identity, "source": source if isinstance(source, str) and source else file.name}


def _refuse(lines: Lines) -> NoReturn:
    """Refuses rows of no known format: shows the first one and what was expected."""
    if not lines.rows:
        first = lines.broken[0] if lines.broken else None
        problem = "the file has no rows" if first is None else first.reason
        raise DataError(problem, file=lines.file, row=None if first is None else first.row, remedy=EXPECTED)
    number, row = lines.rows[0]
    texts = {name: json.dumps(value, ensure_ascii=False, default=str) for name, value in list(row.items())[:6]}
    shown = ", ".join(f"{name}: {text if len(text) <= 40 else f'{text[:37]}...'}" for name, text in texts.items())
    raise DataError(
        f"unknown format of preference pairs. The row is {{{shown}}}", file=lines.file, row=number, remedy=EXPECTED
    )


def split_by_prompt(records: Sequence[Record], share: float, most: int) -> tuple[list[Record], list[Record]]:
    """Returns records to train on and held-out ones, which have no prompt in common; the same ones each time.

    A share of the prompts is held out, at least one and at most `most`.
    """
    prompts = list(dict.fromkeys(str(record["prompt"]) for record in records))
    count = min(most, max(1, round(share * len(prompts))))
    held = set(random.Random("held-out prompts").sample(prompts, min(count, len(prompts))))
    return [row for row in records if row["prompt"] not in held], [row for row in records if row["prompt"] in held]
