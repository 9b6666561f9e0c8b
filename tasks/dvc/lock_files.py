"""DVC's lock files: a dvc.lock beside each dvc.yaml, with the digests that each of its stages ran with.

They are read here as plain YAML, without opening the repository. DVC itself writes them when a stage ends; two methods
of `tasks.dvc.remote.Remote` have it do so outside a stage: `write_locks` and `discard`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RewardsmithError
from tasks.params.yaml_files import nested_too_deeply, read_mapping

ROOT_FILE = "dvc.yaml"


def locked_stages(root: Path, file: str) -> dict[str, dict[str, Any]]:
    """Returns the entries of the dvc.lock beside a dvc.yaml, by stage.

    Raises:
        DataError: it is not a lock file.
    """
    path = (root / file).with_suffix(".lock")
    if not path.exists():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        content = None if nested_too_deeply(text) else yaml.load(text, yaml.CSafeLoader) or {}
    except (OSError, ValueError, yaml.YAMLError):
        content = None
    stages = (content.get("stages") or {}) if isinstance(content, dict) else None
    if not isinstance(stages, dict) or not all(isinstance(entry, dict) for entry in stages.values()):
        raise DataError(
            "it cannot be read as a lock file of DVC", file=str(path), remedy=f"Restore it: git checkout {path.name}"
        )
    return stages


def locked_stage(root: Path, address: str) -> dict[str, Any]:
    """Returns a stage's entry in its dvc.lock; empty without an entry."""
    file, _, name = address.rpartition(":")
    return dict(locked_stages(root, file or ROOT_FILE).get(name) or {})


def readable_lock(path: Path) -> bool:
    """Returns whether DVC would read a dvc.lock: it is whole enough for DVC's own schema."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.strictyaml import YAMLValidationError, validate

    try:
        validate(read_mapping(path), COMPILED_LOCKFILE_SCHEMA)
    except (DataError, YAMLValidationError):
        return False
    return True


def readable_text(path: Path) -> bool:
    """Returns whether DVC can try to read a YAML file: it is a text in UTF-8, and not nested so deeply that the parser
    would end this process."""
    try:
        return path.is_file() and not nested_too_deeply(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return False


def refuse_unreadable_locks(root: Path, files: Sequence[str], readable: Callable[[Path], bool]) -> None:
    """Refuses dvc.yaml files whose dvc.lock is not readable.

    Args:
        root: the repository.
        files: the dvc.yaml files.
        readable: `readable_text`, which is quick, or `readable_lock`.

    Raises:
        RewardsmithError: names the lock file, and how it is rebuilt.
    """
    for lock in (str(Path(file).with_suffix(".lock")) for file in files):
        if os.path.lexists(root / lock) and not readable(root / lock):
            raise RewardsmithError(
                f"{lock} cannot be read as a lock file of DVC. `rewardsmith run` moves it to .work/set-aside and takes "
                f"finished results from DVC's cache; or restore it with `git checkout {lock}`"
            )
