"""Digests of a result's files, compared with those in its record.

A stage's record has the SHA-256 of every file of its result. What is read of a result is compared with it, so that a
number which a disk, a hand or another program changed is refused and never printed. A result whose record is missing
or has no digests of files is read as it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError

REMEDY = "Run `rewardsmith run`, which restores it or makes it again"
RESULT, RECORD = "result", Path("record") / "record.json"


def file_digest(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def digests_of(folder: Path) -> dict[str, Any]:
    """Returns a record's fields about the content of a folder: `files` by relative name, and `result_digest` of all."""
    found = sorted(file for file in folder.rglob("*") if file.is_file())
    files = {file.relative_to(folder).as_posix(): file_digest(file) for file in found}
    total = hashlib.sha256()
    for name in sorted(files, key=lambda name: name.split("/")):
        total.update(f"{name}\0{files[name]}\n".encode())
    return {"files": files, "result_digest": total.hexdigest()}


def check_content(path: Path, content: bytes) -> None:
    """Compares the content of a file, read from a result, with the result's record.

    Raises:
        DataError: it is not what the stage wrote; or a damaged record.
    """
    name, files = _recorded(path)
    if files is None:
        return
    if name not in files:
        raise DataError("its stage did not write this file", file=str(path), remedy=f"Remove it. {REMEDY}")
    if hashlib.sha256(content).hexdigest() != files[name]:
        raise _changed(path)


def exists_or_raise_if_lost(path: Path) -> bool:
    """Returns whether a file of a result exists, as `Path.exists` does, but refuses one that was lost.

    Raises:
        DataError: the file is not there although the result's record names it; or a damaged record.
    """
    if path.exists():
        return True
    name, files = _recorded(path)
    if name in (files or {}):
        raise DataError("its stage wrote this file, and it is not there", file=str(path), remedy=REMEDY)
    return False


def check_result(result: Path, *, weights: bool = True) -> None:
    """Compares all files of a result, weights among them, with its record.

    Args:
        result: the folder.
        weights: False leaves out weights, of which a large model has gigabytes.

    Raises:
        DataError: as `check_content`.
    """
    _, files = _recorded(result / "any")
    if files is None:
        return
    for name in files:
        exists_or_raise_if_lost(result / name)
    for file in sorted(result.rglob("*")):
        looked_at = file.is_file() and (weights or file.suffix != ".safetensors")
        if looked_at and files.get(file.relative_to(result).as_posix()) != file_digest(file):
            raise _changed(file)


def _recorded(path: Path) -> tuple[str, Mapping[str, str] | None]:
    """Returns the name of a file in its `result/` folder, and the digests in the record beside that folder; None
    without them."""
    for folder in path.parents:
        record = folder.parent / RECORD
        if folder.name == RESULT and record.is_file():
            state = record.stat()
            stamp = (state.st_size, state.st_ino, state.st_mtime_ns, state.st_ctime_ns)
            return path.relative_to(folder).as_posix(), _files(record, stamp)
    return path.name, None


@lru_cache(maxsize=4096)
def _files(record: Path, stamp: tuple[int, ...]) -> Mapping[str, str] | None:
    try:
        files: Mapping[str, str] | None = json.loads(record.read_bytes()).get("files")
    except (OSError, ValueError, RecursionError, AttributeError) as error:
        raise DataError(f"not a valid record ({error})", file=str(record), remedy=REMEDY) from None
    return files


def _changed(path: Path) -> DataError:
    problem = "it changed after its stage had ended: its content is not what the stage's record says"
    return DataError(problem, file=str(path), remedy=REMEDY)
