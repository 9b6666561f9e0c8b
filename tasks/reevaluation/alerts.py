"""Which records of re-evaluation have been told to people: each is, also when the flow died in between.

`alerted.json` beside the records holds the number of the last one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.params.yaml_files import write_whole
from tasks.reevaluation.history import MARK, records
from tasks.running.artifacts import read_json


def untold(folder: Path) -> list[dict[str, Any]]:
    """Records newer than the last told one, oldest first; the newest alone where nothing says which that was."""
    known = records(folder)
    path = folder / MARK
    if not path.exists():
        return known[-1:]
    last = read_json(path)["record"]
    return [record for record in known if record["number"] > last]


def note_told(folder: Path, record: int) -> None:
    """Notes the last record that was told, whole or not at all; the file may be a link into DVC's cache."""
    write_whole(folder / MARK, json.dumps({"record": record}, indent=1) + "\n")
