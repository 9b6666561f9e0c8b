"""Equality of mathematical answers by math-verify, which runs in a process of its own.

An answer such as `9^{9^{9^9}}` keeps sympy busy for hours, and math-verify's own timer works in the main thread alone:
the system ends the process after `CPU_SECONDS` of one comparison, whatever else the machine does, and the answer counts
as wrong.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading

from rlhf_core.errors import ToolError

#: Longest answer that is compared, in characters; processor time of a comparison, in seconds; memory, in bytes.
LONGEST, CPU_SECONDS, _MEMORY = 1000, 5.0, 2 << 30
#: Marks of mathematics inside a text; `\\$` is a currency.
_IN_LATEX = re.compile(r"(?<!\\)\$|\\boxed|\\\(|\\\[")


@functools.lru_cache(maxsize=65_536)
def equal_expressions(answer: str, gold: str) -> bool:
    """Returns whether two answers in LaTeX or plain mathematics are equal: as texts without blanks and `$`, or to
    math-verify (`\\frac{1}{2}` and 0.5, `x^2 + x` and `x(x + 1)`)."""
    bare, right = (re.sub(r"[\s$]", "", text) for text in (answer, gold))
    if bare == right:
        return bare != ""
    return max(len(answer), len(gold)) <= LONGEST and _comparison(os.getpid()).equal(answer, gold)


@functools.cache
def _comparison(pid: int) -> _Comparison:
    """Returns the comparing process of the process with an id: a fork does not share its parent's."""
    return _Comparison()


class _Comparison:
    """A process that compares one pair of answers after another; a new one takes the place of one that was ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def equal(self, answer: str, gold: str) -> bool:
        with self._lock:
            if self._process is None:
                self._start()
            reply = self._ask(json.dumps([answer, gold]) + "\n")
            if not reply:
                self._end()
            return reply == "true\n"

    def _start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlhf_core.evaluation.mathematics"], env=environment, text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if self._ask("") != "ready\n":
            self._end()
            raise ToolError("math-verify does not start; install it: pip install -c constraints.txt .")

    def _ask(self, line: str) -> str:
        """Returns the process's next line, empty where it has ended."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(line)
        return self._process.stdout.readline()

    def _end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None


def _serve() -> None:
    """Compares the pairs of standard input, until it ends."""
    import resource

    from math_verify import parse, verify

    with contextlib.suppress(ValueError, OSError):  # macOS
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    print("ready", flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        answer, gold = (
            parse(text if _IN_LATEX.search(text) else f"${text}$", parsing_timeout=None) for text in json.loads(line)
        )
        equal = bool(verify(gold, answer, timeout_seconds=None))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(equal), flush=True)


if __name__ == "__main__":
    _serve()
