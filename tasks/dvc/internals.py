"""Parts of DVC that have no public interface, one function each.

DVC is pinned exactly because of this module and of `dvc.stage` and `dvc.schema`, which modules beside it import.
`tests/tasks/test_dvc_internals.py` has a test for every function, which names what stops working when DVC changes that
part.
"""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

#: The end of DVC's message about a command that failed, which is the only place where its exit status is kept.
EXITED = re.compile(r", exited with (-?\d+)$")
#: Between two looks at a repository's lock that another process holds.
LOCK_SECONDS = 0.02


def open_repo(root: Path) -> Any:
    """Opens a repository whose lock waits for other processes, as `dvc --wait-for-lock` does.

    It looks every LOCK_SECONDS; DVC looks every half second, which stages that begin and end together would spend
    asleep.
    """
    from dvc.lock import Lock
    from dvc.repo import Repo

    read_lock_files_quickly()
    repo = Repo(str(root), _wait_for_lock=True)
    if isinstance(repo.lock, Lock):
        repo.lock.lock = partial(_wait_for, repo.lock)
    return repo


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


def _wait_for(lock: Any) -> None:
    """Takes a lock of DVC's as soon as it is free."""
    from dvc.lock import LockError

    while True:
        try:
            lock._do_lock()
        except LockError:
            time.sleep(LOCK_SECONDS)
        else:
            return


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
    """Returns the newest run of a key in this repository's run cache; None if it is damaged or of another key."""
    folder = Path(repo.cache.legacy.path) / run_folder(key)
    runs = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime) if folder.is_dir() else []
    return run_entry(runs[-1]) if runs else None


def run_entry(file: Path) -> dict[str, Any] | None:
    """Returns an entry of a run cache; None for one that is damaged, or that is another run's than its place says."""
    from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
    from dvc.utils.serialize import YAMLFileCorruptedError, load_yaml
    from voluptuous import Invalid

    try:
        found: dict[str, Any] = COMPILED_LOCK_FILE_STAGE_SCHEMA(load_yaml(str(file)))
    except (YAMLFileCorruptedError, Invalid, RecursionError):
        return None
    return found if run_key(found) == file.parent.name and run_value(found) == file.name else None


def drop_foreign_runs(repo: Any, key: str) -> list[Path]:
    """Removes what this repository's run cache has under a key that is not a run of that key; returns the files."""
    folder = Path(repo.cache.legacy.path) / run_folder(key)
    found = [file for file in folder.glob("*") if run_entry(file) is None]
    for file in found:
        file.unlink()
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()  # DVC fails at an empty one
    return found


def exit_status(error: BaseException) -> int | None:
    """Returns the exit status of the stage's command behind an error of DVC, as a shell gives it (128 + signal); None
    where no command failed."""
    from dvc.stage.exceptions import StageCmdFailedError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, StageCmdFailedError) and (found := EXITED.search(str(cause))):
            status = int(found[1])
            return status if status >= 0 else 128 - status
        cause = cause.__cause__
    return None


@contextmanager
def commands_taken_by(run: Callable[[str, str, Mapping[str, str]], int | None]) -> Iterator[None]:
    """Lets a function run the commands of stages within the block, in place of a shell.

    Args:
        run: takes a command, its working directory and its environment; returns its exit status (negative: the signal
            that ended it), or None to leave the command to the shell.
    """
    from dvc.stage import run as of_stages
    from dvc.stage.exceptions import StageCmdFailedError

    by_shell = of_stages._run

    def _run(executable: Any, cmd: str, **popen: Any) -> None:
        status = run(cmd, popen["cwd"], popen["env"])
        if status is None:
            by_shell(executable, cmd, **popen)
        elif status:
            raise StageCmdFailedError(cmd, status)

    of_stages._run = _run
    try:
        yield
    finally:
        of_stages._run = by_shell
