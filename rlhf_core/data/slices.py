"""Sentences and sub-sentences of a response, as character spans without surrounding white space.

Aspect rewards of density sentence and span are about these (ALARM, §3.1; Wu et al. 2023, §4.2).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Span = tuple[int, int]

_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*(?=\s|$)|\n+")
_SUB_SENTENCE_END = re.compile(r"[.!?]+[\"')\]]*(?=\s|$)|[,;:](?=\s|$)|\n+")
_ABBREVIATION = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|etc|approx|No|vol|e\.g|i\.e|U\.S)\.$")


def sentences(text: str) -> list[Span]:
    """Returns spans of sentences: they end at a full stop, question or exclamation mark before white space, or at a
    newline."""
    return _cut(text, _SENTENCE_END)


def sub_sentences(text: str) -> list[Span]:
    """Returns spans of sub-sentences: sentences cut at commas, semicolons and colons, too."""
    return _cut(text, _SUB_SENTENCE_END)


def relabelled(slices: Sequence[Span], labelled: Sequence[tuple[int, int, bool]]) -> list[bool]:
    """Returns whether each slice is right: it shares no character with a stretch that is labelled wrong.

    Args:
        slices: of a response.
        labelled: stretches (start, end, right) of the same response, cut in another way.
    """
    wrong = [(start, end) for start, end, right in labelled if not right]
    return [not any(start < to and at < end for at, to in wrong) for start, end in slices]


def _cut(text: str, end: re.Pattern[str]) -> list[Span]:
    spans: list[Span] = []
    start = 0
    for match in end.finditer(text):
        if not _ABBREVIATION.search(text[start : match.end()]):
            spans.append((start, match.end()))
            start = match.end()
    spans.append((start, len(text)))
    return [span for span in (stripped(text, *each) for each in spans) if span[0] < span[1]]


def stripped(text: str, start: int, end: int) -> Span:
    """Returns a span [start, end) of a text without the white space at its ends."""
    while end > start and text[end - 1].isspace():
        end -= 1
    while start < end and text[start].isspace():
        start += 1
    return start, end
