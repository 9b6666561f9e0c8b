"""Sources that a LiveCodeBench program is put into, and those that its tests begin with.

A program that reads standard input becomes `run(input)`, which returns what it wrote; one with a function becomes
`called(*arguments)`. The comparison is made in the process of the tests, which never gives an expected value away.
"""

from __future__ import annotations

from rlhf_core.evaluation.code import timer

#: Seconds for one test, as in the official checker.
SECONDS = 6
#: Modules whose names every program may use without importing them, as in the official checker.
_STARRED = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics", "itertools",
    "functools", "operator", "io", "sys", "json", "builtins", "typing",
)  # fmt: skip
_NAMED = tuple(name for name in _STARRED if name not in ("builtins", "typing"))

#: Longest whole numbers that are read and written, as in the official checker.
_DIGITS = "import sys\nsys.set_int_max_str_digits(50000)"
_TIMED = f"import json\n{_DIGITS}\n{timer(SECONDS)}"
#: Setup of the tests of a program that reads standard input: lines are compared without the white space around them,
#: then as decimal numbers.
SCRIPT_SETUP = f"""{_TIMED}
from decimal import Decimal, InvalidOperation

def stripped_lines(text):
    return [line.strip() for line in text.strip().split("\\n")]

def decimals(line):
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None

def same_line(found, wanted):
    if found == wanted:
        return True
    numbers = decimals(found)
    return numbers is not None and numbers == decimals(wanted)

def same_output(found, wanted):
    lines, others = stripped_lines(found), stripped_lines(wanted)
    return len(lines) == len(others) and all(map(same_line, lines, others))
"""
#: Setup of the tests of a function: a tuple is a list, everything else is compared with ==.
FUNCTION_SETUP = f"""{_TIMED}
def same_value(found, wanted):
    return bool((list(found) if isinstance(found, tuple) else found) == wanted)
"""

_NAMES = "\n".join(
    [
        *(f"from {name} import *" for name in _STARRED),
        *(f"import {name}" for name in _NAMED),
        "sys.setrecursionlimit(50000)",
        _DIGITS,
    ]
)
_BEGIN = f"""
import io, sys, threading
threading.Thread.start = lambda thread: thread.run()
threading.Thread.join = lambda thread, timeout=None: None
names = {{}}
exec({_NAMES!r}, names)
"""
_RUN = """
class Written(io.BytesIO):
    def close(self):
        pass

def run(given):
    sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()), encoding="utf-8")
    written = Written()
    sys.stdout = output = io.TextIOWrapper(written, encoding="utf-8", errors="replace", write_through=True)
    try:
        exec(code, {**names, "__name__": "__main__"})
    except SystemExit:
        pass
    if not output.closed:
        output.flush()
    return written.getvalue().decode("utf-8", "replace")
"""
_CALLED = """
names["__name__"] = "solution"
exec(code, names)
function = getattr(names["Solution"](), name) if "class Solution" in text else names[name]

def called(*arguments):
    return function(*arguments)
"""


def script_source(text: str) -> str:
    """Returns the source of a program that reads standard input."""
    return f"{_BEGIN}\ncode = compile({text!r}, '<solution>', 'exec')\n{_RUN}"


def function_source(text: str, name: str) -> str:
    """Returns the source of a program with a function, or a method of its class Solution."""
    return f"{_BEGIN}\ntext, name = {text!r}, {name!r}\ncode = compile(text, '<solution>', 'exec')\n{_CALLED}"
