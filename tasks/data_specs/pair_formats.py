"""Preference pairs in the formats that others publish, as records of kind `preference`.

TRL's standard and conversational pairs, with a prompt of their own or an implicit one; UltraFeedback, binarised or with
its completions; HH-RLHF's transcripts. Rows are JSON Lines (also compressed), JSON or Parquet. A row that its file's
format does not fit becomes a record that the schema refuses, so that it is quarantined with a reason.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from rlhf_core.data.dialogue import render_dialogue
from rlhf_core.data.jsonl import BadRow, Lines, read_lines
from rlhf_core.data.schemas import Record
from rlhf_core.errors import DataError

#: Names of columns that are read as ours, the first that a row has.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "prompt": ("instruction", "question", "query", "input"),
    "chosen": ("chosen_response", "response_chosen", "preferred", "accepted", "better"),
    "rejected": ("rejected_response", "response_rejected", "dispreferred", "worse"),
}
#: Fields of pairs elsewhere that have another meaning or form here.
_NOT_OURS = ("messages", "label", "preference", "margin", "completions")
#: Rows by which a file's format is recognised.
_LOOKED_AT = 20
_ANSWER = "\n\nAssistant:"


@dataclass(frozen=True)
class PairFormat:
    """A format of preference pairs.

    Args:
        title: for people.
        fits: whether a row is of this format.
        convert: a row's prompt, chosen and rejected, and `messages` where the prompt has several; empty where the row
            contradicts itself.
    """

    title: str
    fits: Callable[[Record], bool]
    convert: Callable[[Record], Record]


def _texts(row: Record, *names: str) -> bool:
    return all(isinstance(row.get(name), str) for name in names)


def _messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def _of_messages(row: Record) -> Record:
    """Returns a pair whose answers are messages, alone or behind those of the prompt."""
    before, answers = [], []
    for name in ("chosen", "rejected"):
        *opening, last = row[name]
        if last.get("role") != "assistant" or not isinstance(last.get("content"), str):
            return {}
        before.append(opening)
        answers.append(last["content"])
    if before[0] != before[1]:
        return {}
    stated = row.get("prompt")
    turns: list[Any] = before[0] or (stated if _messages(stated) else [{"role": "user", "content": stated}])  # type: ignore[assignment]
    known = all(turn.get("role") in ("system", "user", "assistant") for turn in turns)
    if not known or not all(isinstance(turn.get("content"), str) for turn in turns) or turns[-1]["role"] != "user":
        return {}
    messages = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    made: Record = {"chosen": answers[0], "rejected": answers[1]}
    if len(messages) == 1:
        return {"prompt": messages[0]["content"], **made}
    return {"prompt": render_dialogue(messages), "messages": messages, **made}


def _of_transcripts(row: Record) -> Record:
    """Returns a pair of HH-RLHF: both transcripts up to the last answer are the prompt."""
    (opening, _, chosen), (other, _, rejected) = (row[name].rpartition(_ANSWER) for name in ("chosen", "rejected"))
    if opening.strip() != other.strip():
        return {}
    return {"prompt": f"{opening.strip()}{_ANSWER}", "chosen": chosen.strip(), "rejected": rejected.strip()}


def _is_transcript(value: Any) -> bool:
    return isinstance(value, str) and value.lstrip().startswith(("Human:", "System:")) and _ANSWER in value


def _of_common_beginning(row: Record) -> Record:
    """Returns a pair without a prompt: what both texts begin with, up to a blank, is the prompt; as TRL has it."""
    both = zip(row["chosen"], row["rejected"], strict=False)
    common = "".join(one for one, _ in takewhile(lambda letters: letters[0] == letters[1], both))
    end = common.rfind(" ") + 1
    return {"prompt": common[:end].strip(), "chosen": row["chosen"][end:], "rejected": row["rejected"][end:]}


def _of_completions(row: Record) -> Record:
    """Returns UltraFeedback's answer of the highest overall score beside that of the lowest; empty if all are equal."""
    scored = [
        (float(one["overall_score"]), str(one["response"]))
        for one in row["completions"]
        if isinstance(one.get("overall_score"), int | float) and isinstance(one.get("response"), str)
    ]
    if not scored or max(scored)[0] == min(scored)[0]:
        return {}
    (high, chosen), (low, rejected) = max(scored), min(scored)
    scores = {"score_chosen": high, "score_rejected": low}
    return {"prompt": row["prompt"], "chosen": chosen, "rejected": rejected, **scores}


#: Every format, the most special first.
FORMATS = (
    PairFormat(
        "messages",
        lambda row: _messages(row.get("chosen")) and _messages(row.get("rejected")),
        _of_messages,
    ),
    PairFormat(
        "transcripts",
        lambda row: "prompt" not in row and all(_is_transcript(row.get(name)) for name in ("chosen", "rejected")),
        _of_transcripts,
    ),
    PairFormat(
        "texts",
        lambda row: _texts(row, "prompt", "chosen", "rejected"),
        lambda row: {name: row[name] for name in ("prompt", "chosen", "rejected")},
    ),
    PairFormat(
        "texts with a common beginning",
        lambda row: "prompt" not in row and _texts(row, "chosen", "rejected"),
        _of_common_beginning,
    ),
    PairFormat(
        "UltraFeedback's completions",
        lambda row: _texts(row, "prompt") and _messages(row.get("completions")),
        _of_completions,
    ),
)
EXPECTED = """Expected one of
  prompt, chosen, rejected: texts, or lists of {role, content} messages (TRL)
  chosen, rejected: both with the prompt, as messages (UltraFeedback) or as texts "Human: ... Assistant: ..." (HH)
  instruction, completions: [{response, overall_score}, ...] (UltraFeedback)
Columns of other names are given as --column chosen=their_name"""


def read_pairs(file: Path, columns: Mapping[str, str]) -> tuple[PairFormat, Lines]:
    """Returns the format of a file of preference pairs, and its rows as records that are yet to be screened.

    Args:
        file: JSON Lines (.jsonl, .jsonl.gz), JSON (.json, a list) or Parquet (.parquet).
        columns: {our field: their column}, where names differ.

    Raises:
        DataError: a file that cannot be read, or rows of no known format; shows the first row and what was expected.
    """
    lines = _read(file)
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
    made = [(number, _record(found, row, file, number)) for number, row in rows]
    return found, Lines(str(file), made, lines.broken)


def _read(file: Path) -> Lines:
    """Returns the rows of a file by its kind."""
    if not file.is_file():
        problem = "is a folder" if file.is_dir() else "no such file"
        raise DataError(problem, file=str(file), remedy="Give files of preference pairs, as in --data pairs.jsonl")
    if file.suffix == ".parquet":
        from pyarrow import ArrowException
        from pyarrow.parquet import read_table

        try:
            return Lines(str(file), list(enumerate(read_table(file).to_pylist(), start=1)))
        except ArrowException as error:
            raise DataError(f"not readable as Parquet ({error})", file=str(file), remedy="Save it again") from None
    if file.suffix != ".json":
        return read_lines(file)
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        remedy = "Rename a file with one object a line to .jsonl"
        raise DataError(f"not valid JSON ({error})", file=str(file), remedy=remedy) from None
    if not isinstance(content, list):
        raise DataError("not a list of rows", file=str(file), remedy="It needs one list of objects")
    lines = Lines(str(file))
    for number, row in enumerate(content, start=1):
        if isinstance(row, dict):
            lines.rows.append((number, row))
        else:
            lines.broken.append(BadRow(number, "", "not a JSON object", row))
    return lines


def _renamed(row: Record, columns: Mapping[str, str]) -> Record:
    """Returns a row with our names of its columns, without those that have no value."""
    made = {name: value for name, value in row.items() if value is not None}
    for name, aliases in ALIASES.items():
        wanted = (columns[name],) if name in columns else () if name in made else aliases
        if (theirs := next((alias for alias in wanted if alias in made), None)) is not None:
            made[name] = made.pop(theirs)
    return made


def _record(found: PairFormat, row: Record, file: Path, number: int) -> Record:
    """Returns a row as a record; without the fields that its format does not give."""
    own = {name: value for name, value in row.items() if name not in (*ALIASES, *_NOT_OURS)}
    made = found.convert(row) if found.fits(row) else {}
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
