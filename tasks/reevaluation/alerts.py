"""Records of re-evaluation whose alerts are still to be sent: each is sent, even if a flow died in between.

`alerted.json` beside the records has the number of the last record sent.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.params.yaml_files import write_whole
from tasks.reevaluation.history import MARK, records
from tasks.running.artifacts import read_json


def records_to_alert(folder: Path) -> list[dict[str, Any]]:
    """Returns the records whose alerts were not sent, oldest first; the newest alone if nothing was noted as sent."""
    known = records(folder)
    path = folder / MARK
    if not path.exists():
        return known[-1:]
    last = read_json(path)["record"]
    return [record for record in known if record["number"] > last]


def note_sent(folder: Path, record: int) -> None:
    """Notes the last record whose alerts were sent, whole or not at all; the file may be a link into DVC's cache."""
    write_whole(folder / MARK, json.dumps({"record": record}, indent=1) + "\n")
