"""The text of a program in an answer, and a time limit for calls of its functions."""

from __future__ import annotations

import re

_FENCE = re.compile(r"```([A-Za-z0-9_+-]*)[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_PYTHON = ("python", "python3", "py")
_TIMER = """
import signal

class TooLong(BaseException):
    pass

def too_long(*_):
    raise TooLong("longer than {seconds} s")

def timed(call, *arguments):
    signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, {seconds})
    try:
        return call(*arguments)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
"""


def extract_code(text: str) -> str:
    """Returns the first fenced block of Python, else the first without a language, else the first of any; the whole
    text when nothing is fenced."""
    blocks = [(match[1].lower(), match[2]) for match in _FENCE.finditer(text)]
    if not blocks:
        return text
    named = [block for language, block in blocks if language in _PYTHON]
    plain = [block for language, block in blocks if not language]
    return (named or plain or [blocks[0][1]])[0]


def timer(seconds: float) -> str:
    """Returns the source of `timed(call, *arguments)`, with which tests end after some seconds of one call."""
    return _TIMER.format(seconds=seconds)
