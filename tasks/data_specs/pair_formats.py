"""Preference pairs in the formats that others publish, as records of kind `preference`.

TRL's standard and conversational pairs, with a prompt of their own or an implicit one; UltraFeedback, binarised or
with its completions; HH-RLHF's transcripts; ShareGPT's and OpenAI's messages; two answers with a verdict (SHP,
PKU-SafeRLHF, WebGPT, HelpSteer, AlpacaFarm, arenas) and lists of answers with ranks or scores (Nectar, Stack Exchange),
of which the best and the worst count.

A row that its file's format does not fit becomes a record that the schema refuses, so that it is quarantined with a
reason; so is a row that prefers no answer. Columns that are not read are named.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from rlhf_core.data.dialogue import dialogue_key
from rlhf_core.data.jsonl import BadRow, Lines
from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError
from tasks.data_specs.pair_columns import (
    LISTS,
    extra_keys,
    has_tools,
    is_messages,
    parse_structured,
    plain_row,
    renamed,
)
from tasks.data_specs.pair_dialogues import ANOTHER, COMMON_BEGINNING, form_of, pair_of
from tasks.data_specs.pair_files import read_rows
from tasks.data_specs.pair_verdicts import TWO_ANSWERS, as_number

#: Fields of pairs elsewhere that have another meaning or form here.
_NOT_OURS = (
    "messages", "label", "preference", "margin", "completions", "history", "answers", "responses", "conversation_a",
    "conversation_b",
)  # fmt: skip
#: Reasons why a row is not a pair.
NO_PREFERENCE, NO_VERDICT = "no answer is preferred", "no verdict that says which answer is better"
_TOOLS = "has tools, which a prompt here cannot offer"
#: Columns of a pair's scores, which records keep.
_SCORED = ("score_chosen", "score_rejected")
#: Rows by which a file's format is recognised.
_LOOKED_AT = 20


# --- several answers ---------------------------------------------------------------------------------------------


#: Of each answer of a list, the text, its rank from the best, or its score.
_ANSWER_TEXTS, _RANKS = ("answer", "response", "text", "content"), ("rank",)
_SCORES = ("overall_score", "score", "pm_score")


def _graded(one: Any) -> tuple[float, float | None, str] | None:
    """Returns (how good an answer of a list is, the score that says so, its text); None without text, rank or score."""
    text = next((one[name] for name in _ANSWER_TEXTS if name in one), None) if isinstance(one, Mapping) else None
    if not isinstance(text, str):
        return None
    for names, sign in ((_RANKS, -1.0), (_SCORES, 1.0)):
        for name in names:
            if not math.isnan(value := as_number(one.get(name))):
                return sign * value, value if sign > 0 else None, text
    return None


def _graded_list(row: Record) -> tuple[str, list[tuple[float, float | None, str]]]:
    """Returns the column of a row's list, and its graded answers; none without a prompt or answers with texts."""
    for name in LISTS if "prompt" in row else ():
        answers: Any = row.get(name)
        if is_messages(answers) and (found := [grade for one in answers if (grade := _graded(one)) is not None]):
            return name, found
    return "", []


def _of_two(
    row: Record, columns: tuple[str, str, str], verdict: tuple[str, ...], better: Callable[..., float]
) -> Record | str:
    """Returns the pair of two answers and their verdict."""
    prompt, first, second = (row[name] for name in columns)
    side = better(*(row[name] for name in verdict))
    if math.isnan(side) or side == 0:
        return NO_PREFERENCE if side == 0 else NO_VERDICT
    found = {} if prompt in (first, second) and is_messages(prompt) else {"prompt": prompt}
    chosen, rejected = (first, second) if side > 0 else (second, first)
    return pair_of({**_system(row), **found, "chosen": chosen, "rejected": rejected})


def _system(row: Record) -> Record:
    return {name: row[name] for name in ("system",) if name in row}


def _of_list(row: Record) -> Record | str:
    """Returns the best answer of a row's list beside its worst."""
    _, found = _graded_list(row)
    if len(found) < 2 or len({shown is None for _, shown, _ in found}) == 2:  # ranks and scores are not compared
        return NO_VERDICT
    (high, shown_high, chosen), (low, shown_low, rejected) = (pick(found, key=itemgetter(0)) for pick in (max, min))
    if high == low:
        return NO_PREFERENCE
    pair = pair_of({**_system(row), "prompt": row["prompt"], "chosen": chosen, "rejected": rejected})
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
    if (form := form_of(row)) is not None:
        found[form] = partial(pair_of, row)
        if form == "transcripts":
            found[COMMON_BEGINNING] = partial(pair_of, row, COMMON_BEGINNING)
    for title, columns, verdict, better in TWO_ANSWERS:
        if all(name in row for name in (*columns, *verdict)):
            found[title] = partial(_of_two, row, columns, verdict, better)
    if _graded_list(row)[1]:
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
    named = [(number, renamed(row, columns)) for number, row in lines.rows]
    for name, column in columns.items():
        if named and not any(name in row for _, row in named):
            raise DataError(
                f"no row has the column '{column}'", file=str(file), field=name,
                remedy=f"Columns: {', '.join(lines.rows[0][1])}",
            )  # fmt: skip
    broken = [*lines.broken, *parse_structured([row for _, row in named], [number for number, _ in named])]
    wrong = {bad.row for bad in broken}
    rows = [(number, plain_row(row)) for number, row in named if number not in wrong]
    readings = [_readings(row) for _, row in rows]
    fitting = Counter(title for found in readings[:_LOOKED_AT] for title in found)
    if not fitting:
        _refuse(Lines(lines.file, lines.rows if rows else [], broken))
    title = max(_TITLES, key=fitting.__getitem__)
    made: list[tuple[int, Record]] = []
    known, read = set[str](), _columns_read(title, (row for _, row in rows))
    for (number, row), found in zip(rows, readings, strict=True):
        pair = found[title]() if title in found else _not_fitting(row, title)
        if has_tools(row):
            pair = _TOOLS
        if isinstance(pair, str):
            broken.append(BadRow(number, "", pair, row))
            continue
        record = _record(pair, row, read, file, number)
        while record["id"] in known:  # several pairs of one prompt often have its id
            record["id"] = f"{record['id']}-{number}"
        known.add(record["id"])
        made.append((number, record))
    return PairFile(title, Lines(str(file), made, broken), _unread(named, read))


def _columns_read(title: str, rows: Iterable[Record]) -> set[str]:
    """Returns the columns of rows, by our names, that a format reads."""
    read = {"system", "id", "source", "tools", *_SCORED}
    if title == _LIST_TITLE:
        return read | {"prompt", *(_graded_list(row)[0] for row in rows)}
    of_two = (name for one, columns, verdict, _ in TWO_ANSWERS if one == title for name in (*columns, *verdict))
    return read | ({*of_two} or {"prompt", "chosen", "rejected"})


def _unread(rows: Iterable[tuple[int, Record]], read: Collection[str]) -> list[str]:
    """Returns the columns of rows, and keys of their messages, that a format does not read."""
    columns = (name for _, row in rows for name in (*(n for n in row if n not in read), *extra_keys(row, read)))
    return list(dict.fromkeys(columns))


def prompt_remedy(file: Path, columns: Mapping[str, str]) -> str:
    """Returns how to name the prompts of a file in the format `COMMON_BEGINNING`: its columns and the option."""
    taken = {"chosen", "rejected", *columns.values()}
    found = [name for name in read_rows(file).rows[0][1] if name not in taken]
    named = f"the other columns are {', '.join(found)}" if found else "there is no other column"
    return f"No column is called prompt; {named}: name the one with the prompts by --column prompt=NAME"


def _not_fitting(row: Record, title: str) -> Record | str:
    """Returns the row as it is where a text of a pair is missing, for the schema to name it; else why it is not one."""
    if any(one == title and all(name in row for name in columns) for one, columns, *_ in TWO_ANSWERS):
        return NO_VERDICT
    texts = {name: row.get(name) for name in ("prompt", "chosen", "rejected")}
    lacking = any(value is None for value in texts.values()) and not any(map(is_messages, texts.values()))
    return {name: value for name, value in texts.items() if value is not None} if lacking else ANOTHER


def _record(made: Record, row: Record, read: Collection[str], file: Path, number: int) -> Record:
    """Returns what a row's format gives as a record, with the row's other fields and its id and source."""
    own = {name: value for name, value in row.items() if name not in (*read, *_NOT_OURS)}
    for score in _SCORED:
        if (value := row.get(score)) is not None:
            own[score] = value if not isinstance(value, str) or math.isnan(as_number(value)) else as_number(value)
    name, source = row.get("id"), row.get("source")
    identity = str(name) if isinstance(name, str | int | float) and str(name).strip() else f"{file.stem}-{number:06d}"
    return {**own, **made, "id": identity, "source": source if isinstance(source, str) and source else file.name}


def _refuse(lines: Lines) -> NoReturn:
    """Refuses rows of no known format: shows the first one and what was expected."""
    if not lines.rows:
        first = lines.broken[0] if lines.broken else None
        problem = "the file has no rows" if first is None else first.reason
        place, field = (None, None) if first is None else (first.row, first.field or None)
        raise DataError(problem, file=lines.file, row=place, field=field, remedy=EXPECTED)
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
    keys = [dialogue_key(record) for record in records]
    prompts = list(dict.fromkeys(keys))
    count = min(most, max(1, round(share * len(prompts))))
    held = set(random.Random("held-out prompts").sample(prompts, min(count, len(prompts))))
    train = [row for row, key in zip(records, keys, strict=True) if key not in held]
    return train, [row for row, key in zip(records, keys, strict=True) if key in held]
