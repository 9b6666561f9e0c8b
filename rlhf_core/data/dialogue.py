"""Dialogues as chat messages: `[{"role": "user" | "assistant" | "system", "content": text}, ...]`.

HH-RLHF prompts are whole dialogues, "Human: ...\\n\\nAssistant: ...\\n\\nHuman: ...\\n\\nAssistant:", and a
"System:" turn may open them. Everything downstream uses messages; any other prompt is one user message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rlhf_core.errors import DataError

Message = dict[str, str]

_ROLES = {"System": "system", "Human": "user", "Assistant": "assistant"}
_NAMES = {role: name for name, role in _ROLES.items()}
_TURN = re.compile(r"(?:^|\n\n)(System|Human|Assistant):")
_OPENING = re.compile(r"\s*(?:System|Human):")


def parse_dialogue(prompt: str) -> list[Message]:
    """Returns the chat messages of a prompt; the empty "Assistant:" at its end, where the answer goes, is no message.

    A text is a dialogue when it opens with "Human:" or "System:" and ends with an "Assistant:" turn left
    open; any other text becomes one user message, whatever it quotes.
    """
    text = prompt.lstrip()
    turns = list(_TURN.finditer(text))
    is_dialogue = bool(_OPENING.match(text)) and bool(turns) and turns[-1].group(1) == "Assistant"
    if not is_dialogue or text[turns[-1].end() :].strip():
        return [{"role": "user", "content": prompt}]
    ends = [turn.start() for turn in turns[1:]]
    return [
        {"role": _ROLES[turn.group(1)], "content": text[turn.end() : end].strip()}
        for turn, end in zip(turns[:-1], ends, strict=True)
    ]


def render_dialogue(messages: Sequence[Mapping[str, str]]) -> str:
    """Returns the "Human: ...\\n\\nAssistant:" text of messages, open for the assistant's answer."""
    turns = [f"{_NAMES[message['role']]}: {message['content']}" for message in messages]
    return "\n\n".join([*turns, "Assistant:"])


def prompt_messages(row: Mapping[str, Any]) -> list[Message]:
    """Returns the messages that a row asks: its `history`, where it has any, and its prompt; else its `messages` where
    a source kept them; else its prompt, taken apart where it is a dialogue."""
    if row.get("history"):
        return [*row["history"], {"role": "user", "content": row["prompt"]}]
    if row.get("messages") is not None:
        return [dict(message) for message in row["messages"]]
    return parse_dialogue(row["prompt"])


def asks_prompt(messages: Sequence[Mapping[str, str]], prompt: str) -> bool:
    """Returns whether the last message is a prompt, or the prompt is the whole dialogue as text.

    White space around a text does not count.
    """
    bare = bare_messages(messages)
    if bare[-1] == ("user", prompt.strip()) or bare == bare_messages(parse_dialogue(prompt)):
        return True
    return render_dialogue(messages).strip() == prompt.strip()  # a message may quote "Human:", which parsing splits


def bare_messages(messages: Iterable[Mapping[str, str]]) -> tuple[tuple[str, str], ...]:
    """Returns roles and contents without white space at their ends, which alone make two dialogues the same."""
    return tuple((message["role"], message["content"].strip()) for message in messages)


def dialogue_key(row: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Returns what two rows have in common that ask the same dialogue."""
    return bare_messages(prompt_messages(row))


def check_messages(messages: Sequence[Mapping[str, str]]) -> None:
    """Refuses messages that no answer can follow.

    Raises:
        DataError: no message, an unknown role, content that is not text, or an assistant turn at the end.
    """
    if not messages:
        raise DataError("a dialogue without messages", remedy="Give at least one user message")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message.get("role"), str) or message["role"] not in _NAMES:
            known = ", ".join(_NAMES)
            raise DataError(f"message {number} has the role '{message.get('role')}'", remedy=f"Known roles: {known}")
        if not isinstance(message.get("content"), str):
            raise DataError(f"message {number} has no text", field="content", remedy="Content must be a text")
    if messages[-1]["role"] != "user":
        raise DataError(
            f"the last message is the {messages[-1]['role']}'s, so there is nothing to answer",
            remedy="End the dialogue with a user message",
        )
