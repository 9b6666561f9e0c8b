"""Answers in generated texts: numbers by RLMEC's rule, but for `\\boxed{}` and times, and by both rules of
lm-evaluation-harness's task gsm8k (version 3.0)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

_TRIGGER = re.compile(r"(?:####|the answer is)[:\s]*", re.IGNORECASE)
#: A number in plain digits: grouped by commas, with decimals, or a fraction of two. Behind a letter a
#: digit is part of a word, behind a word or bracket a sign subtracts, and a time (10:30) is not two numbers.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])-)?\$?(?<!\w)(?![0-9]{1,2}:[0-9]{2}(?![0-9]))"
    r"(?:(?<!\b[0-9]:)(?<!\b[0-9]{2}:)|(?![0-9]{2}(?![0-9])))"
    r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+|(?=\.[0-9]))(?:\.[0-9]+)?(?:/[0-9]+)?"
)

#: Ways in which lm-evaluation-harness reads an answer: the first `#### n`, or the last number.
HarnessMode = Literal["strict", "flexible"]
_HARNESS = {
    "strict": (re.compile(r"#### (\-?[0-9\.\,]+)"), 0),
    "flexible": (re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)"), -1),
}
#: Stop strings of a generation: in the harness's task gsm8k, and in RLMEC, whose prompt has the marks of Alpaca's form.
HARNESS_STOPS = ("Question:", "</s>", "<|im_end|>")
RLMEC_STOPS = ("### Instruction:", "### Response:", "</s>")
HARNESS_INVALID = "[invalid]"
_HARNESS_IGNORED = (r",", r"\$", r"(?s).*#### ", r"\.$")


def told_answer(text: str) -> str | None:
    """Returns what a solution tells as its answer.

    Behind the last `####` or `The answer is` that is a `\\boxed{}`, else the line without a final full stop. Without
    such words it is the last `\\boxed{}` of the text, or None.
    """
    behind = _behind_trigger(text)
    if behind is None:
        return last_boxed(text)
    line = behind.split("\n")[0].strip()
    boxed = last_boxed(line)
    return boxed if boxed is not None else line.removesuffix(".").strip() or None


def extract_number(text: str) -> str | None:
    """Returns the number that a solution ends with, in plain digits (`-1234.5`) or a fraction of two (`3/4`), or None.

    It is the first number behind the last `####` or `The answer is`, or in the last `\\boxed{}`; the last number of a
    text with neither. Where there is a `=`, it is the first or last behind the last one.

    Source: RLMEC's evaluation; it deviates at `\\boxed{}` and at times, which are not numbers here.
    """
    text = text.replace("\N{MINUS SIGN}", "-")
    told = _behind_trigger(text)
    if told is None:
        told = last_boxed(text)
    part, place = (text, -1) if told is None else (told, 0)
    for searched in (part.rsplit("=", 1)[-1], part):
        found = _NUMBER.findall(searched)
        if found:
            return re.sub("[$,]", "", found[place])
    return None


def _behind_trigger(text: str) -> str | None:
    """Returns the text behind the last `####` or `The answer is`, None without one."""
    triggers = list(_TRIGGER.finditer(text))
    return text[triggers[-1].end() :] if triggers else None


def last_boxed(text: str) -> str | None:
    """Returns the content of the last complete `\\boxed{...}` (braces balanced), or None."""
    opened: list[int] = []
    found = None
    for brace in re.finditer(r"[{}]", text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            start = opened.pop()
            if text.endswith("\\boxed", 0, start) and (found is None or start > found[0]):
                found = start, text[start + 1 : brace.start()].strip()
    return found[1] if found else None


def parse_number(text: str) -> Fraction | None:
    """Returns the value of a text that is one number in plain digits, also with `$`, `%` or a final full stop."""
    bare = text.replace("\N{MINUS SIGN}", "-").strip().removesuffix(".").strip(" $%")
    if not _NUMBER.fullmatch(bare):
        return None
    try:
        return Fraction(re.sub("[$,]", "", bare))
    except (ValueError, ZeroDivisionError):  # more digits than Python reads, or a fraction of 0
        return None


def cut_at(text: str, stops: Sequence[str]) -> str:
    """Returns a generation up to the first of some stop strings."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def harness_answer(text: str, mode: HarnessMode) -> str:
    """Returns gsm8k's filters: `strict` the first `#### n`, `flexible` the last number; `[invalid]` without one.

    The text ends at the task's stop strings.
    """
    pattern, select = _HARNESS[mode]
    found = pattern.findall(cut_at(text, HARNESS_STOPS))
    if not found:
        return HARNESS_INVALID
    chosen = found[select]
    if isinstance(chosen, tuple):
        chosen = next(group for group in chosen if group)
    return str(chosen).strip()


def harness_match(text: str, gold: str, mode: HarnessMode) -> bool:
    """Returns gsm8k's exact_match between a generation and a gold solution (whole, or only its final number)."""
    return _harness_normalised(harness_answer(text, mode)) == _harness_normalised(gold)


def _harness_normalised(text: str) -> str:
    for pattern in _HARNESS_IGNORED:
        text = re.sub(pattern, "", text)
    return text.lower()
