"""The records of re-evaluation, files in reevaluations/<name>@<alias>/ that DVC keeps by reevaluations.dvc; and results
that the tree no longer holds, restored by DVC from the commits that know them.

Git ignores the records. A fresh clone, or a tree that pulled a newer reevaluations.dvc, lacks records that DVC
has; they are restored before anything reads them.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError
from tasks.dvc.remote import restore_tracked
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import digest, read_json, read_object
from tasks.running.commit import git
from tasks.running.result_digests import RECORD

RECORDS = Path("reevaluations")
#: The file by which DVC keeps them.
NAMED = Path("reevaluations.dvc")
#: The last record whose alerts were sent; of two such files the later holds. No other file of the folder ever changes.
MARK = "alerted.json"
#: Commits after a result's own that are looked at: dvc.lock is committed after the run.
LATER = 20


def records_folder(root: Path, name: str, alias: str) -> Path:
    """Returns the folder of a model's records."""
    return root / RECORDS / f"{name}@{alias}"


def records(folder: Path) -> list[dict[str, Any]]:
    """Returns records of a model, oldest first."""
    return [read_json(path) for path in sorted(folder.glob("[0-9]*.json"))]


def restore_records(root: Path) -> list[str]:
    """Writes the files that reevaluations.dvc names and the folder lacks, others stay; returns what it wrote, relative
    to the root.

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


def commits_of(root: Path, commit: str) -> list[str]:
    """Returns the commits that may know a result: its own, and later ones with changed lock files, oldest first."""
    done = git(root, "rev-list", "--reverse", f"{commit}..HEAD", "--", "*dvc.lock", "*.dvc")
    return [commit, *done.stdout.split()[:LATER]] if commit and done.returncode == 0 else []


def restore_result(root: Path, result: str, wanted: str, commit: str, folder: Path) -> None:
    """Writes a result, its record, and the data (whose template it was trained with) and SFT model behind it into a
    folder, each at its path in the tree and with the digest that registry and record name.

    Args:
        result, wanted: the result folder, relative to the root, and its digest.
        commit: at which it was made.
        folder: an empty one.

    Raises:
        DataError: one of them is in no commit, or neither in the cache nor on a remote.
    """
    commits = commits_of(root, commit)
    found = _get(root, result, wanted, commits, folder)
    record = Path(result).parent / "record"
    _get(root, record.as_posix(), None, [found], folder)
    inputs: Mapping[str, str] = read_object(folder / record.parent / RECORD).get("inputs", {})
    for path, value in inputs.items():
        if {"data", "sft"} & set(Path(path).parts):
            _get(root, path, value, [found, *commits], folder)


def _get(root: Path, path: str, wanted: str | None, commits: list[str], folder: Path) -> str:
    """Writes one path with the wanted digest into the folder; returns the commit that had it."""
    out, why = folder / path, "no commit of this repository is known to have it"
    out.parent.mkdir(parents=True, exist_ok=True)
    for commit in commits:
        call = [sys.executable, "-m", "dvc", "get", "-q", ".", path, "--rev", commit, "--out", str(out)]
        done = subprocess.run(call, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and wanted in (None, digest(out)):
            return commit
        why = done.stderr.strip() or f"commit {commit[:10]} has another one"
        if out.is_dir():
            shutil.rmtree(out)
        out.unlink(missing_ok=True)
    raise DataError(f"cannot be restored: {why}", file=path, remedy="dvc pull, or commit the dvc.lock that names it")
