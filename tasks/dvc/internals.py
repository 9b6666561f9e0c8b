"""Parts of DVC that have no public interface, one function each; and its lock files, read without the repository.

DVC is pinned exactly because of this module and of `dvc.stage` and `dvc.schema`, which modules beside it import.
`tests/tasks/test_dvc_internals.py` has a test for every function, which names what stops working when DVC changes that
part.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    from dvc.stage.cache import _get_cache_hash

    return str(_get_cache_hash(copy.deepcopy(dict(entry)), key=True))


def run_value(entry: Mapping[str, Any]) -> str:
    """Returns the name of a run's file in DVC's run cache, below its key."""
    from dvc.stage.cache import _get_cache_hash

    return str(_get_cache_hash(copy.deepcopy(dict(entry))))


def run_folder(key: str) -> Path:
    """Returns the folder of a key's runs, relative to a cache or a remote."""
    return Path("runs") / key[:2] / key


def newest_run(repo: Any, key: str) -> dict[str, Any] | None:
    """Returns the newest whole run of a key in this repository's run cache; None without one."""
    folder = Path(repo.cache.legacy.path) / run_folder(key)
    # names that begin with a dot are of runs that another process is writing
    runs = sorted(folder.glob("[!.]*"), key=lambda file: file.stat().st_mtime, reverse=True)
    return next(filter(None, (_run(repo, file) for file in runs)), None)


def _run(repo: Any, file: Path) -> dict[str, Any] | None:
    """Returns an entry of a run cache; None for one that is damaged, or that is another run's than its place says."""
    found: dict[str, Any] | None = repo.stage_cache._load_cache(file.parent.name, file.name)
    whole = found and run_key(found) == file.parent.name and run_value(found) == file.name
    return found if whole else None


def save_run(repo: Any, stage: Any) -> Path:
    """Writes a saved stage into the run cache and returns its file; DVC itself does so in the working directory of the
    process alone."""
    from dvc.stage.serialize import to_single_stage_lockfile
    from dvc.utils.serialize import dump_yaml

    entry = to_single_stage_lockfile(stage)
    path = Path(repo.cache.legacy.path) / run_folder(run_key(entry)) / run_value(entry)
    if _run(repo, path) is None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        dump_yaml(str(partial), entry)
        partial.rename(path)
    return path


def is_damaged(copy: Path) -> bool:
    """Returns whether a file of DVC's cache has another content than its name says; DVC trusts a read-only one."""
    if not copy.exists():
        return False
    with copy.open("rb") as content:
        return hashlib.file_digest(content, "md5").hexdigest() != copy.parent.name + copy.name.removesuffix(".dir")


def drop_damaged(repo: Any, outs: Iterable[Any], *, whole: bool = True) -> list[Any]:
    """Removes damaged files of outputs from DVC's cache; returns the outputs that had some.

    Args:
        whole: False looks at the lists of folders' files alone, and not at the files.
    """
    from dvc_data.hashfile.tree import Tree

    cache, found = repo.cache.local, []
    for out in outs:
        digests, damaged = [str(out.hash_info.value)] if out.hash_info else [], False
        for digest in digests:  # grows by the files of a folder whose list is whole
            copy = Path(cache.oid_to_path(digest))
            if is_damaged(copy):
                damaged = True
                copy.chmod(0o644)
                copy.unlink()
            elif whole and digest.endswith(".dir") and copy.exists():
                digests += [info.value for _, _, info in Tree.load(cache, out.hash_info) if info]
        found += [out] if damaged else []
    return found


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
