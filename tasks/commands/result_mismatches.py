"""Numbers of a result that follow from the rest of it: a result that says something else was mixed up.

Single numbers vary so much between re-runs that their tolerances cannot tell one row's win rate from another's. But the
rows beside them determine them, to the last digit on any machine. Each kind of stage says what follows from what
(`tasks.running.mismatches`).
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from rlhf_core.errors import RewardsmithError
from tasks.graph.stopping import STOPPED_FILE
from tasks.running.mismatches import FinishedStage
from tasks.running.typed_results import read_stage_record


def result_mismatches(out: Path, root: Path) -> list[str]:
    """Returns what of a stage's result does not follow from the rest of it and from what it read, in words.

    Args:
        out: the stage's output directory.
        root: of the repository, in which inputs are found.
    """
    module = f"tasks.{read_stage_record(out)['stage']}"
    if find_spec(module) is None or (out / "result" / STOPPED_FILE).exists():
        return []
    mismatches = getattr(import_module(module), "mismatches", None)
    found: list[str] = []
    try:
        for words in () if mismatches is None else mismatches(FinishedStage(out, root)):
            found.append(words)
    except (RewardsmithError, KeyError, TypeError, ValueError, IndexError) as error:
        found.append(f"its numbers cannot be computed again: {error!r:.200}")
    return found
