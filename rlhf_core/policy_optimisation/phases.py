"""Timing of an iteration's phases. Clocks neither change results nor enter them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rlhf_core.lazy import torch

#: generate samples responses; score runs the reference, the reward and the critic; update trains.
PHASES = ("generate", "score", "update")


class PhaseClock:
    """Seconds and response tokens of each phase since it was last read.

    A phase may be entered several times; its seconds add up, its tokens are those of `count`. On a GPU the work
    under way is waited for where a phase begins and ends, a few times per iteration.
    """

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._tokens = dict.fromkeys(PHASES, 0)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds what runs inside to a phase, a name in `PHASES`."""
        begin = self._now()
        try:
            yield
        finally:
            self._seconds[name] += self._now() - begin

    def count(self, name: str, tokens: int) -> None:
        """Adds response tokens that a phase went through."""
        self._tokens[name] += tokens

    def read(self) -> dict[str, float]:
        """Returns `<phase>_seconds`, and `<phase>_tokens_per_second` of phases that took any; starts anew."""
        found: dict[str, float] = {}
        for name, seconds in self._seconds.items():
            found[f"{name}_seconds"] = seconds
            if seconds > 0 and self._tokens[name]:
                found[f"{name}_tokens_per_second"] = self._tokens[name] / seconds
        self._reset()
        return found

    @staticmethod
    def _now() -> float:
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        return time.perf_counter()
