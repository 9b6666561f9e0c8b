"""Columns of files of preference pairs under our names, and messages in them as lists of {role, content}.

A text stays a text: whether a column has messages is decided by the column, not by the cell.
"""

from __future__ import annotations

import ast
import io
import json
import math
import re
import tokenize
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from rlhf_core.data.jsonl import BadRow, each_key_once
from rlhf_core.data.schemas import Record
from tasks.data_specs.pair_verdicts import TWO_ANSWERS

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
_DIALOGUES = tuple(dict.fromkeys((*ALIASES, *(column for _, columns, *_ in TWO_ANSWERS for column in columns))))
#: Roles in ShareGPT's messages.
_ROLES = {"human": "user", "gpt": "assistant"}
#: Columns with a list of answers.
LISTS = ("answers", "completions", "responses")
#: Beginning of a text that may have messages, and keys that it has then.
_BEGINS = re.compile(r"\s*\[?\s*\{\s*[\"']")
_KEYS = ("role", "content"), ("from", "value"), ("full_text",)
#: Keys of a message, and beside messages, that are read; those of calls refuse a message.
_MESSAGE_KEYS, _CALLS = {"role", "from", "content", "value"}, ("tool_calls", "function_call")
_SYSTEMS = ("system", *ALIASES["system"])
#: Texts that say that a column of messages, a list or tools has no value.
_NOTHING = ("null", "None", "")
#: Two literals of Python that may be one text, as numpy prints lists.
_SIDE_BY_SIDE = re.compile(r"[\"']\s*[a-zA-Z]{0,2}[\"']")
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
    """Returns a row whose messages have a role and a content; tools beside messages become the row's."""
    beside = (value for name in _DIALOGUES if isinstance(value := row.get(name), Mapping))
    tools = next(({"tools": value["tools"]} for value in beside if has_tools(value)), {})
    return {name: _plain_messages(value) if name in _DIALOGUES else value for name, value in (row | tools).items()}


def has_tools(row: Mapping[str, Any]) -> bool:
    """Returns whether a row, or a mapping with messages, offers tools; a text that says `[]` or `null` offers none."""
    tools = row.get("tools")
    try:
        return bool(tools.strip() and _structure(tools) if isinstance(tools, str) else tools)
    except ValueError:
        return True


def _plain_messages(value: Any) -> Any:
    """Returns messages as lists of {role, content}: ShareGPT's {from, value}, OpenAI's {messages: [...]}, also with a
    system text beside them, one message alone, contents in parts; WebGPT's text of a question; any other value as it
    is. A call of a tool has no content."""
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        system = next((value[name] for name in _SYSTEMS if value.get(name) not in (None, "")), None)
        before = [] if system is None else [{"role": "system", "content": system}]
        inner = value["messages"]
        value = inner if before == _plain_messages(inner[:1]) else [*before, *inner]
    elif isinstance(value, Mapping):
        value = value.get("full_text", [value] if {"role", "from"} & value.keys() else value)
    if not is_messages(value):
        return value
    plain = []
    for turn in value:
        role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
        if is_messages(content) and all(_is_text(part) for part in content):
            content = "".join(part["text"] for part in content)
        called = any(turn.get(name) for name in _CALLS)
        plain.append({"role": _ROLES.get(str(role), role), "content": None if called else content})
    return plain


def _is_text(part: Mapping[str, Any]) -> bool:
    return part.get("type") == "text" and isinstance(part.get("text"), str)


def parse_structured(rows: Sequence[Record], numbers: Sequence[int]) -> list[BadRow]:
    """Replaces the texts of columns that have messages or lists of answers as text by what they say; returns the rows
    of which one cannot be read, each once. A column has them where most of its texts look so; lists of answers matter
    only where most rows have no pair of answers."""
    broken: dict[int, BadRow] = {}
    paired = sum("chosen" in row and "rejected" in row for row in rows)
    for name in (*_DIALOGUES, *(LISTS if 2 * paired <= len(rows) else ())):
        texts = [text for row in rows if isinstance(text := row.get(name), str) and text.strip() not in _NOTHING]
        looks = _looks_like_list if name in LISTS else _looks_like_messages
        if 2 * sum(looks(text) or (name == "prompt" and _is_list_of_texts(text)) for text in texts) <= len(texts):
            continue
        for number, row in zip(numbers, rows, strict=True):
            if not isinstance(text := row.get(name), str):
                continue
            if text.strip() in _NOTHING:
                del row[name]
                continue
            try:
                found = _structure(text)
            except ValueError:
                found = None
            if isinstance(found, list | Mapping):
                row[name] = found
            else:
                broken.setdefault(number, BadRow(number, name, _UNREADABLE, dict(row)))
    return list(broken.values())


def _looks_like_messages(text: str) -> bool:
    return _BEGINS.match(text) is not None and any(
        all(f'"{key}"' in text or f"'{key}'" in text for key in keys) for keys in _KEYS
    )


def _looks_like_list(text: str) -> bool:
    return text.lstrip().startswith("[")


def _is_list_of_texts(text: str) -> bool:
    """Returns whether a text is a list of texts in JSON, as an arena writes the prompts of several turns."""
    try:
        said = json.loads(text) if text.startswith('["') else None
    except (ValueError, RecursionError):
        return False
    return isinstance(said, list) and all(one is None or isinstance(one, str) for one in said)


def _structure(text: str) -> Any:
    """Returns the list, mapping or constant that is written in a text, as JSON or Python writes it.

    Raises:
        ValueError: another text, a key that a mapping has twice, or literals side by side, which Python would join.
    """
    try:
        return json.loads(text, object_pairs_hook=each_key_once)
    except KeyError as error:
        raise ValueError(f"key {error} twice") from None
    except (ValueError, RecursionError):
        pass
    try:
        tree = ast.parse(text.strip(), mode="eval")
        value = ast.literal_eval(tree)
        if _SIDE_BY_SIDE.search(text):
            words = [token.type for token in tokenize.generate_tokens(io.StringIO(text.strip()).readline)]
            kinds = [kind for kind in words if kind not in (tokenize.NL, tokenize.COMMENT)]
            if (tokenize.STRING, tokenize.STRING) in pairwise(kinds):
                raise ValueError("literals side by side")
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                keys = [ast.literal_eval(key) for key in node.keys if key is not None]
                if len(set(keys)) < len(keys):
                    raise ValueError("a key twice")
    except (SyntaxError, TypeError, RecursionError, MemoryError, tokenize.TokenError) as error:
        raise ValueError(str(error)) from None
    return value


def extra_keys(row: Record, read: Collection[str]) -> list[str]:
    """Returns the keys of messages, and beside them, in columns that are read, but that are not read themselves, such
    as `chosen[].id`."""
    return [key for name in _DIALOGUES if name in read for key in _extra(name, row.get(name))]


def _extra(name: str, value: Any) -> list[str]:
    if is_messages(value):
        keys = {key for turn in value for key, inner in turn.items() if inner is not None}
        return [f"{name}[].{key}" for key in sorted(keys - _MESSAGE_KEYS - {*_CALLS})]
    if not isinstance(value, Mapping):
        return []
    known, inner = {*_MESSAGE_KEYS, *_CALLS, "tools"}, []
    if isinstance(value.get("messages"), list):
        known, inner = {"messages", "tools", *_SYSTEMS}, _extra(f"{name}.messages", value["messages"])
    elif "full_text" in value:
        known = {"full_text", "tools"}
    return [*(f"{name}.{key}" for key in sorted(value.keys() - known) if value[key] is not None), *inner]
