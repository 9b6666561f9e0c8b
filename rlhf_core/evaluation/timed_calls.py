"""Source of tests that limits the time of each call of a program, in the process of the tests."""

from __future__ import annotations

_SOURCE = """
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


def timer(seconds: float) -> str:
    """Returns the source of `timed(call, *arguments)`, which ends the tests after some seconds of one call."""
    return _SOURCE.format(seconds=seconds)
