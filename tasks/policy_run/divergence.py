"""Notes of a training whose numbers diverged: the reason, and its evaluations until then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_core import distributed
from rlhf_core.errors import NumericsError
from tasks.graph.stopping import DIVERGED_FILE
from tasks.policy_run.run import PolicyRun
from tasks.running.artifacts import write_json


@contextmanager
def noting_divergence(out: Path, run: PolicyRun) -> Iterator[None]:
    """Writes `<out>/diverged.json` if numbers diverge, and lets the error pass: the stage has no result.

    Args:
        out: the stage's output directory.
        run: has the evaluations so far; the finite ones are written.
    """
    if not distributed.rank():
        (out / DIVERGED_FILE).unlink(missing_ok=True)
    try:
        yield
    except NumericsError as error:
        if not distributed.rank():
            finite = [row for row in run.evaluations if all(map(math.isfinite, row.values()))]
            write_json(out / DIVERGED_FILE, {"reason": str(error), "evaluations": finite})
        raise
