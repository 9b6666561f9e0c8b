"""The records of re-evaluation, files in reevaluations/<name>@<alias>/ that DVC keeps by reevaluations.dvc.

Git ignores the records. A fresh clone, or a tree that pulled a newer reevaluations.dvc, lacks records that DVC
has; they are restored before anything reads them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tasks.dvc.remote import restore_tracked
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_json

RECORDS = Path("reevaluations")
#: The file by which DVC keeps them.
NAMED = Path("reevaluations.dvc")
#: The last record whose alerts were sent; of two such files the later holds. No other file of the folder ever changes.
MARK = "alerted.json"


def records_folder(root: Path, name: str, alias: str) -> Path:
    """Returns the folder of a model's records."""
    return root / RECORDS / f"{name}@{alias}"


def records(folder: Path) -> list[dict[str, Any]]:
    """Returns records of a model, oldest first."""
    return [read_json(path) for path in sorted(folder.glob("[0-9]*.json"))]


def restore_records(root: Path) -> list[str]:
    """Writes the files that reevaluations.dvc names and the folder lacks; others, such as records that are not yet
    under DVC, stay as they are.

    Returns:
        what it wrote, relative to the root.

    Raises:
        RewardsmithError: DVC does not give them, so that what follows would not know the last evaluation.
        DataError: a file of the folder is another one than DVC's.
    """
    if not (root / NAMED).exists():
        return []
    return restore_tracked(root, RECORDS, may_differ=MARK)


def records_to_alert(folder: Path) -> list[dict[str, Any]]:
    """Returns the records whose alerts were not sent, oldest first; the newest alone if nothing was noted as sent.

    Each alert is sent, even if a flow died in between.
    """
    known = records(folder)
    path = folder / MARK
    if not path.exists():
        return known[-1:]
    last = read_json(path)["record"]
    return [record for record in known if record["number"] > last]


def note_sent(folder: Path, record: int) -> None:
    """Notes the last record whose alerts were sent, whole or not at all; the file may be a link into DVC's cache."""
    write_whole(folder / MARK, json.dumps({"record": record}, indent=1) + "\n")
