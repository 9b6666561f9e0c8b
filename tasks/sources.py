"""Where real data lie, and what a stage's result says of how they were screened."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rlhf_core.data.quarantine import Summary
from rlhf_core.errors import DataError
from tasks.artifacts import digest

#: Directory that a `directory` source reads when its spec names none.
DATA_VARIABLE = "REWARDSMITH_DATA"


def data_directory(named: str | None) -> Path:
    """The folder that a data spec names, else the one of the environment.

    Raises:
        DataError: neither names one.
    """
    root = named or os.environ.get(DATA_VARIABLE)
    if not root:
        raise DataError(
            "the data spec names no directory",
            remedy=f"Set the environment variable {DATA_VARIABLE} to the folder with <name>.<split>.jsonl.gz files",
        )
    return Path(root)


def screened(summary: Summary) -> dict[str, Any]:
    """What screening found in a file, without machine paths."""
    path = summary.quarantine_file
    places = {"file": Path(summary.file).name, "quarantine_file": f"quarantine/{Path(path).name}" if path else None}
    return {**asdict(summary), **places, "quarantined": summary.quarantined}


def file_digests(root: Path, sets: Collection[str]) -> dict[str, str]:
    """Digest of every file of some sets, by file name."""
    return {path.name: digest(path) for path in sorted(root.iterdir()) if path.name.split(".")[0] in sets}
