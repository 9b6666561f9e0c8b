"""Steps of a solution: their places, their labels, and the name of the first wrong one.

Source: RLMEC, section 4.1 and appendix A.1.
"""

from __future__ import annotations

import itertools
import re

from rlhf_core.data.slices import stripped

#: A full stop or question mark ends a step before a space or the end only, so never inside 1.25.
_SENTENCE_END = re.compile(r"[.?](?=\s|$)")
_LABEL = re.compile(r"\[(\d+)\]")
_BARE_LABEL = re.compile(r"\[?(\d+)\]?\.?")
CORRECT = "correct"


def step_spans(text: str) -> list[tuple[int, int]]:
    """Returns [start, end) of every step, without the white space around it: lines, or sentences where there is one
    line.

    A blank text has no step.
    """
    lines = [(match.start(), match.end()) for match in re.finditer(r"[^\n]+", text)]
    filled = [(start, end) for start, end in lines if text[start:end].strip()]
    if len(filled) == 1:
        start, end = filled[0]
        cuts = [start, *(match.end() for match in _SENTENCE_END.finditer(text, start, end)), end]
        filled = [(a, b) for a, b in itertools.pairwise(cuts) if text[a:b].strip()]
    return [stripped(text, start, end) for start, end in filled]


def split_steps(text: str) -> list[str]:
    """Returns the steps themselves."""
    return [text[start:end] for start, end in step_spans(text)]


def labelled(text: str) -> str:
    """Returns one step a line, each behind its label: `[0] `, `[1] `, ..."""
    return "\n".join(f"[{number}] {step}" for number, step in enumerate(split_steps(text)))


def kept_before(text: str, step: int) -> str:
    """Returns the text before a step, with the break; after the last step, the whole text and a break."""
    spans = step_spans(text)
    if step < len(spans):
        return text[: spans[step][0]]
    if not spans:
        return ""
    head = text[: spans[-1][1]]
    return head + (text[spans[-2][1] : spans[-1][0]] if len(spans) > 1 else "\n")


def locating_target(step: int | None) -> str:
    """Returns `The first error step is [k]`, or `correct` for None."""
    return CORRECT if step is None else f"The first error step is [{step}]"


def says_correct(text: str) -> bool:
    """Returns whether an answer to the locating prompt says that every step is correct."""
    return text.strip().rstrip(".").casefold() == CORRECT


def named_step(text: str) -> int | None:
    """Returns the step that an answer to the locating prompt names, from 0: a bare label, or the only one in brackets;
    None without."""
    bare = _BARE_LABEL.fullmatch(text.strip())
    found = {int(bare[1])} if bare else {int(label) for label in _LABEL.findall(text)}
    return found.pop() if len(found) == 1 else None
