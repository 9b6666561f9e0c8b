"""Results of stages that stopped: one file with the reason, which later stages, tables and the scheduler read."""

from __future__ import annotations

from pathlib import Path

from rlhf_core.errors import DataError
from tasks.params.yaml_files import read_mapping

#: The only file in the result of a stage that stopped.
STOPPED_FILE = "stopped.json"
#: File of a policy whose numbers diverged, in its output directory; such a policy has no result.
DIVERGED_FILE = "diverged.json"


def stopped(result: Path) -> str | None:
    """Returns the reason why the stage of a result stopped, None if it did not stop.

    Raises:
        DataError: the file that says so cannot be read.
    """
    path = result / STOPPED_FILE
    if not path.exists():
        return None
    found = read_mapping(path)
    if "reason" not in found:
        raise DataError("is missing", file=str(path), field="reason", remedy="Re-run its stage")
    return str(found["reason"])
