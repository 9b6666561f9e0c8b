"""Writes the golden metrics anew: python -m tests.tasks.refresh_golden [NAME ...]."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.tasks.golden_metrics import FOLDER, differences, measured, store, stored
from tests.tasks.tiny_pipeline import RUNS, SETTINGS, Pipeline


def refresh(names: list[str]) -> None:
    """Runs the tiny pipeline and stores what it measures; all runs unless some are named."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with tempfile.TemporaryDirectory() as folder:
        pipeline = Pipeline(Path(folder)).write(SETTINGS)
        for name in RUNS:
            pipeline.run(name)
            if names and name not in names:
                continue
            found = measured(pipeline, name)
            before = stored(name) if (FOLDER / f"{name}.json").exists() else {"version": None, "metrics": {}}
            changes = differences(before["metrics"], found["metrics"])
            if changes and before["version"] == found["version"]:
                print(f"{name}: VERSION {found['version']} did not change although metrics did", file=sys.stderr)
            print("\n  ".join([f"{name}: version {before['version']} -> {found['version']}", *changes]))
            store(name, found)


if __name__ == "__main__":
    refresh(sys.argv[1:])
