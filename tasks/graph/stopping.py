"""Results of stages that stopped: one file with the reason, which later stages, tables and the scheduler read."""

from __future__ import annotations

from pathlib import Path

from tasks.params.yaml_files import read_mapping

#: What a stage that stopped leaves in its result, and nothing beside it.
STOPPED_FILE = "stopped.json"
#: What a policy whose numbers diverged leaves beside its result, which it does not have.
DIVERGED_FILE = "diverged.json"


def stopped(result: Path) -> str | None:
    """Returns the reason why the stage of a result stopped, None if it did not stop."""
    path = result / STOPPED_FILE
    return str(read_mapping(path)["reason"]) if path.exists() else None
