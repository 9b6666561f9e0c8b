"""Parts of DVC that have no public interface, one function each; and its lock files, read without the repository.

DVC is pinned exactly because of this module and of `dvc.stage` and `dvc.schema`, which modules beside it import.
`tests/tasks/test_dvc_internals.py` has a test for every function, which names what stops working when DVC changes that
part.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.params.yaml_files import read_mapping

ROOT_FILE = "dvc.yaml"


def open_repo(root: Path) -> Any:
    """Opens a repository whose lock waits for other processes, as `dvc --wait-for-lock` does."""
    from dvc.repo import Repo

    read_lock_files_quickly()
    return Repo(str(root), _wait_for_lock=True)


def read_lock_files_quickly() -> None:
    """Lets DVC parse a lock file that it is about to rewrite with the parser that it reads lock files with.

    For files to be rewritten DVC has a parser that keeps comments and takes about eight times as long. DVC writes no
    comments into lock files, and the bytes that follow are the same.
    """
    from dvc import dvcfile
    from dvc.utils.serialize import _common, _yaml

    keeping_comments = _yaml.modify_yaml

    @contextmanager
    def modify_yaml(path: Any, fs: Any = None) -> Iterator[Any]:
        if not str(path).endswith(".lock"):
            with keeping_comments(path, fs=fs) as data:
                yield data
            return
        with _common._modify_data(path, _yaml.parse_yaml, _yaml._dump, fs=fs) as data:
            yield data

    dvcfile.modify_yaml = modify_yaml


def run_key(entry: Mapping[str, Any]) -> str:
    """Returns the key of a run in DVC's run cache: of its command, its inputs' digests and its outputs' paths.

    Args:
        entry: the stage as `dvc.lock` holds it.
    """
    return run_value({**entry, "outs": [out["path"] for out in entry.get("outs", [])]})


def run_value(entry: Mapping[str, Any]) -> str:
    """Returns the name of a run's file in DVC's run cache, below its key."""
    from dvc.utils import dict_sha256
    from dvc_data.hashfile.meta import Meta

    return str(dict_sha256(copy.deepcopy(dict(entry)), exclude=[Meta.PARAM_SIZE, Meta.PARAM_NFILES]))


def run_folder(key: str) -> Path:
    """Returns the folder of a key's runs, relative to a cache or a remote."""
    return Path("runs") / key[:2] / key


def newest_run(repo: Any, key: str) -> dict[str, Any] | None:
    """Returns the newest whole run of a key in this repository's run cache; None without one."""
    folder = Path(repo.cache.legacy.path) / run_folder(key)
    runs = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True) if folder.is_dir() else []
    return next(filter(None, map(run_entry, runs)), None)


def run_entry(file: Path) -> dict[str, Any] | None:
    """Returns an entry of a run cache; None for one that is damaged, or that is another run's than its place says."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml
    from voluptuous import Invalid

    try:
        found: dict[str, Any] = COMPILED_LOCK_FILE_STAGE_SCHEMA(load_yaml(str(file)))
    except (OSError, YAMLFileCorruptedError, Invalid, RecursionError):
        return None
    return found if run_key(found) == file.parent.name and run_value(found) == file.name else None


def save_run(repo: Any, stage: Any) -> Path:
    """Writes a saved stage into the run cache and returns its file; DVC itself does so in the working directory of the
    process alone."""
    from dvc.stage.serialize import to_single_stage_lockfile
    from dvc.utils.serialize import dump_yaml

    entry = to_single_stage_lockfile(stage)
    path = Path(repo.cache.legacy.path) / run_folder(run_key(entry)) / run_value(entry)
    if run_entry(path) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        dump_yaml(str(partial), entry)
        partial.rename(path)
    return path


def readable_lock(path: Path) -> bool:
    """Returns whether DVC would read a dvc.lock: it is whole enough for DVC's own schema."""
    from dvc.schema import COMPILED_LOCKFILE_SCHEMA
    from dvc.utils.strictyaml import YAMLValidationError, validate

    try:
        validate(read_mapping(path), COMPILED_LOCKFILE_SCHEMA)
    except (DataError, YAMLValidationError):
        return False
    return True


def refuse_unreadable_locks(root: Path, files: Sequence[str]) -> None:
    """Refuses dvc.yaml files whose dvc.lock DVC would not read.

    Raises:
        RewardsmithError: names the lock file, and how it is rebuilt.
    """
    for lock in (str(Path(file).with_suffix(".lock")) for file in files):
        if os.path.lexists(root / lock) and not readable_lock(root / lock):
            raise RewardsmithError(
                f"{lock} cannot be read as a lock file of DVC. `rewardsmith run` moves it to .work/set-aside and takes "
                f"finished results from DVC's cache; or restore it with `git checkout {lock}`"
            )
