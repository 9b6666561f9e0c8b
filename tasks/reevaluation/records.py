"""The records of re-evaluation: files in reevaluations/<name>@<alias>/, which DVC keeps by reevaluations.dvc.

Git ignores the folder. A fresh clone, or a tree that pulled a newer reevaluations.dvc, lacks records that DVC has; they
are brought before anything reads them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.params.yaml_files import write_whole
from tasks.running.artifacts import read_json

RECORDS = Path("reevaluations")
#: The file by which DVC keeps them.
NAMED = Path("reevaluations.dvc")
#: Which record was told last; of two, the later one holds. No other file of the folder ever changes.
MARK = "alerted.json"


def records_folder(root: Path, name: str, alias: str) -> Path:
    """Where the records of a model are."""
    return root / RECORDS / f"{name}@{alias}"


def records(folder: Path) -> list[dict[str, Any]]:
    """Records of a model, oldest first."""
    return [read_json(path) for path in sorted(folder.glob("[0-9]*.json"))]


def bring_records(root: Path) -> list[str]:
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
    from dvc_data.hashfile.hash import file_md5

    written = []
    for name, source in _kept(root).items():
        path = root / RECORDS / name
        if not path.exists():
            write_whole(path, source.read_text(encoding="utf-8"))
            written.append((RECORDS / name).as_posix())
        elif path.name == MARK:
            if read_json(source)["record"] > read_json(path)["record"]:
                write_whole(path, source.read_text(encoding="utf-8"))
        elif file_md5(str(path)) != file_md5(str(source)):
            raise DataError(
                f"is another one than {NAMED} names, and neither ever changes",
                file=str(path),
                remedy="Move it away: the next run brings DVC's",
            )
    return written


def _kept(root: Path) -> Mapping[str, Path]:
    """The files that reevaluations.dvc names, each with its copy in DVC's cache, fetched where that lacks it."""
    try:
        return _in_cache(root)
    except FileNotFoundError:
        call = [sys.executable, "-m", "dvc", "--wait-for-lock", "fetch", "-q", NAMED.name]
        done = subprocess.run(call, cwd=root, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    try:
        return _in_cache(root)
    except FileNotFoundError as error:
        raise RewardsmithError(
            f"{root / NAMED} names records that neither DVC's cache nor a remote has ({done.stderr.strip() or error}). "
            "Without them the next evaluation would count as the first. Bring them: dvc remote add, dvc pull "
            f"{NAMED}; or take back the {NAMED} whose records are here"
        ) from None


def _in_cache(root: Path) -> Mapping[str, Path]:
    """The same of those in the cache. Raises: FileNotFoundError: the cache lacks one."""
    from dvc.exceptions import DvcException
    from dvc.repo import Repo
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.errors import ObjectFormatError

    try:
        with Repo(str(root)) as repo:
            [stage] = repo.stage.load_all(str(root / NAMED))
            cache, named = repo.cache.local, stage.outs[0].hash_info
            found = {"/".join(parts): Path(cache.oid_to_path(info.value)) for parts, _, info in Tree.load(cache, named)}
    except (DvcException, ObjectFormatError) as error:
        raise DataError(
            f"DVC cannot read it ({error})", file=str(root / NAMED), remedy=f"git checkout {NAMED}, or dvc pull"
        ) from None
    for path in found.values():
        if not path.exists():
            raise FileNotFoundError(str(path))
    return found
