"""A stage that ends at a checkpoint: what a kill leaves behind, without a process to start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tasks.running.checkpoints import SECONDS_VARIABLE, RunCheckpoints


class Killed(Exception):
    """Stands for a process that ends."""


@contextmanager
def killed_at_a_checkpoint(step: int | None = None) -> Iterator[None]:
    """Within it every checkpoint is saved, and the stage ends right after the first one, or after that of `step`."""
    offer = RunCheckpoints.offer

    def killed(self: RunCheckpoints, at: int, state: Any) -> None:
        offer(self, at, state)
        if step in (None, at):
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(SECONDS_VARIABLE, "0")
        patched.setattr(RunCheckpoints, "offer", killed)
        with pytest.raises(Killed):
            yield
