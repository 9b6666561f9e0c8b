"""Whether a run that is asked for again has anything to do.

A run that ended well leaves a note in `.work/ended/` of what its results, report and MLflow runs come from: the locks
of its stages, the code, and where MLflow is. While that stands and DVC finds every stage current, the same command says
so in seconds, and starts neither Prefect nor what follows the stages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf_core.errors import RewardsmithError
from tasks import plan
from tasks.artifacts import write_json
from tasks.commit import changed_since, commit_of
from tasks.platform_state import read_private

FOLDER = Path(".work") / "ended"
#: What a run writes beside the results, and MLflow's default store.
REPORT, MLFLOW = Path("report") / "index.html", Path("mlflow.db")
PROJECT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Asked:
    """What `rewardsmith run` is asked for: a paper's rows and seeds, or the suite, and what is to follow them."""

    paper: str
    scale: str
    full: bool
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    report: bool
    sync: bool

    def note(self, root: Path) -> Path:
        """Where its note lies."""
        name = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return root / FOLDER / f"{name}.json"


def ended_well(root: Path, asked: Asked, files: Sequence[str]) -> None:
    """Notes that what was asked for is done. A disk that takes no note is not worth a run: the next one looks anew.

    Args:
        files: the dvc.yaml files of its stages, relative to the root.
    """
    if (made_of := _digest(root, files)) is not None:
        note = asked.note(root)
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_json(note, {**asdict(asked), "files": list(files), "digest": made_of})


def nothing_to_do(root: Path, asked: Asked) -> int | None:
    """How many stages are current, where all are and what follows them is there, too; None where a run has to look."""
    noted = read_private(asked.note(root))
    if not noted or noted["digest"] != _digest(root, noted["files"]):
        return None
    if (asked.report and not (root / REPORT).exists()) or (asked.sync and not _has_runs(root)):
        return None
    stages = plan.asked_for(root, asked.paper, asked.rows, asked.seeds, scale=asked.scale, full=asked.full)
    return len(stages) if all(stage.state == "current" for stage in stages.values()) else None


def _has_runs(root: Path) -> bool:
    return bool(os.environ.get("MLFLOW_TRACKING_URI")) or (root / MLFLOW).exists()


def _digest(root: Path, files: Sequence[str]) -> str | None:
    """Of the locks beside the files, the code that runs and MLflow's address; None where nobody knows the code."""
    commit = commit_of(PROJECT)
    try:
        changed = [PROJECT / name for name in changed_since(PROJECT, commit)] if commit else None
    except RewardsmithError:
        changed = None
    if changed is None:
        return None
    digest = hashlib.sha256(f"{commit} {os.environ.get('MLFLOW_TRACKING_URI', '')}".encode())
    for path in [*changed, *((root / file).with_name("dvc.lock") for file in files)]:
        digest.update(path.read_bytes() if path.is_file() else b"")
        digest.update(f"\0{path}\0".encode())
    return digest.hexdigest()
