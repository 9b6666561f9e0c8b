"""Pairs of rows with both answers: texts, messages, and transcripts of HH-RLHF, with the dialogue before them.

Roles and contents alone make two dialogues the same; a row that would lose one is refused.
"""

from __future__ import annotations

import unicodedata
from typing import Any

from rlhf_core.data.dialogue import Message, bare_messages, prompt_messages, render_dialogue
from rlhf_core.data.schemas import Record
from tasks.data_specs.pair_columns import is_messages

#: Format of texts whose prompt no column names.
COMMON_BEGINNING = "texts with a common beginning"
#: Reasons why a row is not a pair.
ANOTHER = "not in the format of the file's other rows"
_OPENINGS = "the answers do not continue the same dialogue"
_TWO_SYSTEMS = "the system text is not that of the dialogue"
_NO_PROMPT = "the prompt is neither a text nor messages"
#: Beginnings of the names of letters whose scripts have no blanks between words.
_WITHOUT_BLANKS = (
    "CJK UNIFIED IDEOGRAPH", "CJK COMPATIBILITY IDEOGRAPH", "HIRAGANA LETTER", "KATAKANA LETTER",
    "KATAKANA-HIRAGANA PROLONGED", "THAI ", "LAO ", "KHMER ", "MYANMAR ",
)  # fmt: skip
_ANSWER, _HUMAN = "\n\nAssistant:", "\n\nHuman:"


def _is_transcript(value: str) -> bool:
    return value.lstrip().startswith(("Human:", "System:")) and _ANSWER in value


def form_of(row: Record) -> str | None:
    """Returns the format of a row with both answers, the most special one; None for another row."""
    sides = row.get("chosen"), row.get("rejected")
    if all(map(is_messages, sides)):
        return "messages"
    if not all(isinstance(side, str) for side in sides):
        return None
    if "prompt" not in row:
        return "transcripts" if all(map(_is_transcript, sides)) else COMMON_BEGINNING  # type: ignore[arg-type]
    if is_messages(row["prompt"]):
        return "messages with texts as answers"
    return "texts" if isinstance(row["prompt"], str) else None


def pair_of(row: Record, form: str | None = None) -> Record | str:
    """Returns the prompt, chosen and rejected of a row with both answers, with `messages` where the prompt has several;
    or why the row is not a pair. It is read in its most special format, if none is named."""
    form = form or form_of(row)
    if form is None:
        prompt = row.get("prompt")
        return ANOTHER if prompt is None or isinstance(prompt, str) or is_messages(prompt) else _NO_PROMPT
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
    while not all(_is_between_words(text, end) for text in (chosen, rejected)):
        end -= 1
    return {"prompt": chosen[:end].strip(), "chosen": chosen[end:], "rejected": rejected[end:]}


def _is_between_words(text: str, place: int) -> bool:
    """Returns whether a place is at a blank or an end of a text. In scripts without blanks, such as Chinese and Thai,
    each letter is a word, and a wide mark such as a full stop ends one."""
    if place in (0, len(text)) or text[place - 1].isspace() or text[place].isspace():
        return True
    before, after = text[place - 1], text[place]
    kind, next_kind = map(unicodedata.category, (before, after))
    if kind in ("Po", "Pe") and unicodedata.east_asian_width(before) in "WF":
        return True
    letters = kind[0] in "LM" and next_kind[0] == "L"  # a mark belongs to the letter before it
    return letters and all(unicodedata.name(one, "").startswith(_WITHOUT_BLANKS) for one in (before, after))


def _with_system(pair: Record, system: Any) -> Record | str:
    """Returns a pair whose dialogue begins with a system text, if there is one; it may do so already."""
    if is_messages(system) and len(system) == 1 and system[0]["role"] == "system":
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
    stated: Any = row.get("prompt", [])
    if isinstance(stated, str):
        stated = prompt_messages({"prompt": stated}) if stated.strip() else []
    if stated != [] and not is_messages(stated):
        return _NO_PROMPT
    for turn in (*stated, *before[0], *before[1]):
        if turn["role"] not in ("system", "user", "assistant") or not isinstance(turn["content"], str):
            return f"a message of {str(turn['role'])[:20]} is not a text of system, user or assistant"
    if bare_messages(before[0]) != bare_messages(before[1]):
        return _OPENINGS
    messages = _joined(stated, before[0])
    if isinstance(messages, str):
        return messages
    if not messages or messages[-1]["role"] != "user":
        return "the prompt does not end with a message of the user"
    made: Record = {"chosen": answers[0], "rejected": answers[1]}
    if len(messages) == 1:
        return {"prompt": messages[0]["content"], **made}
    return {"prompt": render_dialogue(messages), "messages": messages, **made}


def _joined(stated: list[Message], opening: list[Message]) -> list[Message] | str:
    """Returns the dialogue that a prompt and the messages before the answers state together. They lack the system text
    of the prompt or have one for it, and go on behind it from an answer, repeat its end from a turn of the user, or
    have it as their beginning or end."""
    sides = [(turns[:1], turns[1:]) if turns and turns[0]["role"] == "system" else ([], turns)
             for turns in (stated, opening)]  # fmt: skip
    (own, asked), (other, before) = sides
    if own and other and bare_messages(own) != bare_messages(other):
        return _TWO_SYSTEMS
    system = own or other
    if asked and before and asked[-1]["role"] == "user" and before[0]["role"] == "assistant":
        return [*system, *asked, *before]
    short, long = sorted((bare_messages(asked), bare_messages(before)), key=len)
    if short not in (long[len(long) - len(short) :], long[: len(asked)]):
        return "the prompt is not the dialogue before the answers"
    return [*system, *max(before, asked, key=len)]
