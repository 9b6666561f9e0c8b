"""Check for work left to do when a run is requested again.

A run that ended well leaves a note in `.work/ended/`: a digest of its stages' locks, the code, the report's page and
MLflow's address. While the note is valid and DVC finds every stage current, the same command says so in seconds, and
starts neither Prefect nor the follow-ups.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tasks.dvc import stale
from tasks.graph.stages import stopped_stages
from tasks.running.artifacts import write_json
from tasks.running.commit import code_of
from tasks.running.doubtful_numbers import alarm_lines, stages_with_alarms
from tasks.running.platform_state import read_private

FOLDER = Path(".work") / "ended"
#: Report that a run writes beside the results, and MLflow's default store.
REPORT, MLFLOW = Path("report") / "index.html", Path("mlflow.db")
PROJECT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RunRequest:
    """Request to `rewardsmith run`: a paper's rows and seeds, or the suite, and the follow-up tasks."""

    paper: str
    scale: str
    full: bool
    rows: tuple[str, ...]
    seeds: tuple[int, ...]
    report: bool
    sync: bool

    def note(self, root: Path) -> Path:
        """Returns the path of its note."""
        name = hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]
        return root / FOLDER / f"{name}.json"


def loaded_code_digest() -> str:
    """Returns the digest of the code that this process has loaded, if it has just begun; empty where nobody knows."""
    return code_of(PROJECT)


def mark_request_done(root: Path, request: RunRequest, files: Sequence[str], code: str) -> None:
    """Notes that the request is done. Without the note, for want of disk space, the next run checks again.

    Args:
        files: the dvc.yaml files of its stages, relative to the root.
        code: `loaded_code_digest` when the run began; where nobody knows it, no note is left.
    """
    if code:
        note = request.note(root)
        with suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_json(note, {**asdict(request), "files": list(files), "digest": _digest(root, request, files, code)})


def nothing_to_do(root: Path, request: RunRequest) -> str | None:
    """Returns a line with the number of stages if all are current and followed up, with their alarms below; None if a
    run must check."""
    noted = read_private(request.note(root))
    if not noted or noted["digest"] != _digest(root, request, noted["files"], loaded_code_digest()):
        return None
    stages = stale.requested_stages(
        root, request.paper, request.rows, request.seeds, scale=request.scale, full=request.full
    )
    if not all(stage.state == "current" for stage in stages.values()):
        return None
    stops = stopped_stages(root, stages.values())
    alarms = stages_with_alarms(root, stages.values())
    line = f"{len(stages)} current" + (f", {len(stops)} of them stopped" if stops else "")
    line += f", {len(alarms)} with an alarm" if alarms else ""
    return "\n".join([line, *alarm_lines(alarms)])


def _digest(root: Path, request: RunRequest, files: Sequence[str], code: str) -> str:
    """Returns digests of the code, MLflow's address, the locks beside the files, and the report's page."""
    mlflow = os.environ.get("MLFLOW_TRACKING_URI") or (request.sync and (root / MLFLOW).exists())
    digest = hashlib.sha256(f"{code} {mlflow}".encode())
    for path in [
        *((root / file).with_name("dvc.lock") for file in files),
        *([root / REPORT] if request.report else []),
    ]:
        digest.update(path.read_bytes() if path.is_file() else b"")
        digest.update(f"\0{path}\0".encode())
    return digest.hexdigest()
