"""Texts as a reader sees them, and signs of verdicts that several grammars look for."""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from collections.abc import Callable

from rlhf_core.evaluation.judges.protocol import JudgeAnswer

#: Ends an answer that the endpoint cut off at its length, so that no verdict ends it.
CUT_OFF = "\n[cut off at max_tokens]"
_THOUGHT = re.compile(r"\s*<(think|thinking|thought|reasoning)>", re.IGNORECASE)

#: Markdown around a verdict: emphasis, code and heading.
MARKUP = r"[*_`# \t]{0,9}"
#: Text that may follow the last verdict of a reply: white space, closing marks and a full stop.
END = re.compile(
    r"(?:[\s*_`#.\"')\]}|$\\\u201d\u300d\u3002\u00bb]|</(?:final[_-])?(?:answer|verdict|rating|score|judge?ment|decision)>)*"
)
#: A negation right before a verdict.
NEGATED = re.compile(
    r"\b(?:not|never|no|neither|cannot|refused?)\b[^.,:;!?]{0,30}$|n't\b[^.,:;!?]{0,30}$", re.IGNORECASE
)
#: Signs that look like those of verdicts: Cyrillic, Greek and small capital letters, other comparisons.
_LOOKALIKES = str.maketrans(
    dict(
        zip(
            "\u0410\u0412\u0391\u0392\u039d\u043c\u041c\u039c\u226b\u226a\u227b\u227a",
            [*"ABABNmMM", ">>", "<<", *"><"],
            strict=True,
        )
    )
    | dict(
        zip(
            "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0456\u0415\u041e\u0422\u0395\u03a4\u0299\u1d00",
            "aeopcyxiEOTETBA",
            strict=True,
        )
    )
)
_ARENA_LIKE = re.compile(r"\[[\[ \t]{0,9}([AB])\s{0,9}([<>=]{1,3})\s{0,9}([AB])", re.IGNORECASE)
BETTER_LIKE = re.compile(
    r"(?i:better|winner|verdict|choice|preferred|b e t t e r)[\s*_`]{0,9}"
    r"(?:(?i:is\b)?[\s*_`]{0,9}[:=]|(?<=r)\s(?i:is\b))[\s*_`]{0,9}([ABN])\b"
)


def folded(text: str) -> str:
    """Returns a text as a reader sees it: without invisible characters, with plain letters in the place of wide and
    similar ones, HTML's entities and escapes undone."""
    seen = text if text.isascii() else unicodedata.normalize("NFKC", text)
    seen = unicodedata.normalize("NFKC", html.unescape(seen)).translate(_LOOKALIKES) if "&" in seen else seen
    seen = seen.replace("\\", "")
    if seen.isascii():
        return seen
    return seen.translate(_LOOKALIKES).translate(
        {ord(each): None for each in set(seen) if unicodedata.category(each) == "Cf"}
    )


def stands(text: str, verdict: re.Match[str], end: int | None = None) -> bool:
    """Returns whether a verdict, up to its own or a later end, ends its reply and no negation is right before it."""
    before = text[max(0, verdict.start() - 60) : verdict.start()]
    return END.fullmatch(text, verdict.end() if end is None else end) is not None and NEGATED.search(before) is None


def after_thought(parse: Callable[[str], JudgeAnswer]) -> Callable[[str], JudgeAnswer]:
    """Returns a reader of the reply behind the thought that opens a text."""

    @functools.wraps(parse)
    def read(text: str) -> JudgeAnswer:
        opened = _THOUGHT.match(text)
        if opened is None:
            return parse(text)
        thoughts = re.split(rf"</{opened[1]}>", text, flags=re.IGNORECASE)
        if len(thoughts) != 2:
            return JudgeAnswer.invalid("a thought without one end")
        return parse(thoughts[1].lstrip())

    return read


def arena_like(seen: str) -> set[str]:
    return {f"{one}{sign}{other}".upper() for one, sign, other in _ARENA_LIKE.findall(seen)}


def number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
