"""Check for work left to do when a run is requested again.

A run that ended well leaves a note in `.work/ended/`. While nothing is newer that it read or wrote (its stages' locks,
the report's page, the pages of params/, the code) and DVC finds every stage current, the same command says so in
seconds, and starts neither Prefect nor what follows the stages.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from tasks.dvc import stale
from tasks.dvc.pipelines import Request
from tasks.graph.stages import stopped_stages
from tasks.running.doubtful_numbers import alarm_lines, stages_with_alarms
from tasks.running.platform_state import read_private, write_private

FOLDER = Path(".work") / "ended"
#: Report that a run writes beside the results, and MLflow's default store.
REPORT, MLFLOW = Path("report") / "index.html", Path("mlflow.db")
PROJECT = Path(__file__).resolve().parents[2]


def note_of(root: Path, request: Request) -> Path:
    """Returns the path of a request's note, which is another one for another MLflow."""
    asked = {**asdict(request), "mlflow": os.environ.get("MLFLOW_TRACKING_URI", "")}
    return root / FOLDER / f"{hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]}.json"


def mark_request_done(root: Path, request: Request, files: Sequence[str], began: float) -> None:
    """Notes that the request is done. Without the note, for want of disk space, the next run checks again.

    Args:
        files: the dvc.yaml files of its stages, relative to the root.
        began: seconds of the clock when the run began, with the code of that time.
    """
    with suppress(OSError):
        write_private(note_of(root, request), {"files": list(files), "began": began})


def nothing_to_do(root: Path, request: Request) -> str | None:
    """Returns a line with the number of stages if all are current and followed up, with their alarms below; None if a
    run must check."""
    path = note_of(root, request)
    if not (noted := read_private(path)):
        return None
    results = [(root / file).with_name("dvc.lock") for file in noted["files"]] + ([root / REPORT] * request.report)
    needed = [*results, *([root / MLFLOW] if request.sync and not os.environ.get("MLFLOW_TRACKING_URI") else [])]
    if not all(file.exists() for file in needed):
        return None
    if _newest(results) > path.stat().st_mtime or _newest(_sources(root)) > noted["began"]:
        return None
    stages = stale.requested_stages(root, request).values()
    if not all(stage.state == "current" for stage in stages):
        return None
    stops, alarms = stopped_stages(root, stages), stages_with_alarms(root, stages)
    line = f"{len(stages)} current" + (f", {len(stops)} of them stopped" if stops else "")
    return "\n".join([line + (f", {len(alarms)} with an alarm" if alarms else ""), *alarm_lines(alarms)])


def _sources(root: Path) -> Iterator[Path]:
    """Yields the files of the code and of the settings."""
    yield root / "params.yaml"
    for folder in (root / "params", *(PROJECT / package for package in ("flows", "tasks", "rlhf_core"))):
        yield from (path for path in folder.rglob("*.*") if path.suffix != ".pyc")


def _newest(files: Iterable[Path]) -> float:
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)
