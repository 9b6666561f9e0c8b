"""Columns of files of preference pairs under our names, and messages in them as lists of {role, content}.

A text stays a text: whether a column has messages is decided by the column, not by the cell.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_core.data.jsonl import BadRow
from rlhf_core.data.schemas import Record

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
#: Fields that may have messages.
_DIALOGUES = (*ALIASES, "context", "conversation_a", "conversation_b")
#: Roles in ShareGPT's messages.
_ROLES = {"human": "user", "gpt": "assistant"}
#: Columns with a list of answers.
LISTS = ("answers", "completions", "responses")
#: Beginning of a text that may have messages, and keys that it has then.
_BEGINS = re.compile(r"\s*\[?\s*\{\s*[\"']")
_KEYS = ("role", "content"), ("from", "value"), ("full_text",)
#: Keys of a message that are read; those of calls refuse it.
_MESSAGE_KEYS, _CALLS = {"role", "from", "content", "value"}, ("tool_calls", "function_call")
_UNREADABLE = "messages or a list as text that cannot be read; save the file as JSON Lines or Parquet"


def is_messages(value: Any) -> bool:
    """Returns whether a value is a list of mappings, as messages are."""
    return isinstance(value, list) and bool(value) and all(isinstance(turn, Mapping) for turn in value)


def renamed(row: Record, columns: Mapping[str, str]) -> Record:
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


def plain_row(row: Record) -> Record:
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
    if not is_messages(value):
        return value
    plain = []
    for turn in value:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if is_messages(content) and all(part.get("type") == "text" for part in content):
            content = "".join(str(part.get("text")) for part in content)
        called = any(turn.get(name) for name in _CALLS)
        plain.append({"role": _ROLES.get(str(role), role), "content": None if called else content})
    return plain


def parse_structured(rows: Sequence[Record], numbers: Sequence[int]) -> list[BadRow]:
    """Replaces the texts of columns that have messages, lists of answers or tools as text by what they say; returns the
    rows of which one cannot be read. A column has them where most of its texts look so."""
    broken: list[BadRow] = []
    for name in (*_DIALOGUES, *LISTS, "tools"):
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


def extra_keys(row: Record) -> list[str]:
    """Returns the keys of a row's messages that are not read, as `chosen[].id`."""
    found: list[str] = []
    for name in _DIALOGUES:
        value: Any = row.get(name)
        if is_messages(value):
            keys = {key for turn in value for key, inner in turn.items() if inner is not None}
            found += [f"{name}[].{key}" for key in sorted(keys - _MESSAGE_KEYS - {*_CALLS})]
    return found
