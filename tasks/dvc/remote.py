"""A DVC remote that several machines share.

A result's key is DVC's: command (with the stage's version), digests of the inputs, paths of the outputs. Outputs are
pushed before the entry of DVC's run cache by which other machines know the result, so an entry on the remote has its
outputs there, whenever a machine dies.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.dvc.internals import run_folder, save_run
from tasks.params.yaml_files import write_whole


class RemoteFailed(RewardsmithError):
    """A remote that did not take or give everything, for a reason that may pass."""


class Remote:
    """A DVC remote seen from one clone.

    Args:
        repo: DVC's repository of the clone.
        name: the remote, as `dvc remote add` named it; empty for the clone's default remote.

    Raises:
        RecipeError: there is no such remote.
    """

    def __init__(self, repo: Any, name: str) -> None:
        self.repo = repo
        self.name = name or str(repo.config["core"].get("remote", ""))
        known = sorted(repo.config["remote"])
        if self.name not in known:
            wanted = f"no DVC remote '{self.name}'" if self.name else "this clone has no default DVC remote"
            raise RecipeError(
                f"{wanted}; known: {', '.join(known) or 'none'}. `dvc remote add -d NAME URL` makes one; commit it"
            )
        self.store = repo.cloud.get_remote_odb(self.name)
        entries = repo.cloud.get_remote_odb(self.name, hash_name="md5-dos2unix")
        self.fs, self.path = entries.fs, entries.path

    @contextmanager
    def _translated_errors(self, what: str) -> Iterator[None]:
        """Gives the errors of a remote, of which each kind of store has its own, one form.

        Raises:
            RemoteFailed: for any reason but a lack of permission, which does not pass.
        """
        try:
            yield
        except RewardsmithError:
            raise
        except Exception as error:
            kind = RewardsmithError if isinstance(error, PermissionError | NotADirectoryError) else RemoteFailed
            raise kind(
                f"remote '{self.name}' ({self.path}) cannot be {what} from here: {error or type(error).__name__}. Get "
                "permission to read and write there (or its keys, `dvc remote modify --local`), then run the same "
                "command again; finished work is kept in this clone"
            ) from error

    def check(self) -> None:
        """Writes, lists and removes a small file.

        Raises:
            RewardsmithError: this machine may not, or cannot, do that.
        """
        probe = self.fs.join(self.path, f".probe-{uuid.uuid4().hex}")
        with self._translated_errors("written"):
            try:
                self.fs.makedirs(self.path, exist_ok=True)
                self.fs.pipe_file(probe, b"")
                self.fs.find(self.fs.join(self.path, "runs", "00"))
            finally:
                with suppress(Exception):
                    self.fs.rm_file(probe)

    def fetch_runs(self, key: str) -> None:
        """Brings the entries of a key into this clone's run cache, which checks an entry when it reads it.

        Raises:
            RemoteFailed: the remote cannot be asked now.
        """
        target = Path(self.repo.cache.legacy.path) / run_folder(key)
        folder = self.fs.join(self.path, *run_folder(key).parts)
        with self._translated_errors("asked"):
            for path in sorted(self.fs.find(folder)) if self.fs.exists(folder) else ():
                file = target / self.fs.name(path)
                if not file.exists():
                    content = self.fs.cat_file(path)
                    target.mkdir(parents=True, exist_ok=True)
                    partial = file.with_name(f".{file.name}.{os.getpid()}")
                    partial.write_bytes(content)
                    partial.rename(file)

    def pull(self, outs: Iterable[Any]) -> None:
        """Brings what this clone's cache lacks of some outputs, as far as the remote has it.

        Raises:
            RemoteFailed: the remote cannot be asked now.
        """
        with self._translated_errors("read"):
            self._transfer(self.store, self.repo.cache.local, outs)

    def push(self, stages: Sequence[Any]) -> None:
        """Pushes the results of stages, then their run-cache entries; what is there already is left alone.

        Raises:
            RewardsmithError: results that are not in the cache, or a remote that does not take them.
        """
        from dvc.fs import generic, localfs

        outs = [out for stage in stages for out in stage.outs]
        with self._translated_errors("written"):
            failed, missing = self._transfer(self.repo.cache.local, self.store, outs)
            if failed:
                raise RemoteFailed(f"remote '{self.name}' did not take {failed} file(s); they are kept in this clone")
            lost = [out.def_path for out in outs if missing or not self.store.exists(out.hash_info.value)]
            if lost:
                raise DataError(
                    f"parts of {', '.join(lost[:3])} are neither in this clone's cache nor on remote '{self.name}'",
                    remedy="Push from the clone that made them (`dvc push --run-cache`), or remove them",
                )
            for entry in (save_run(self.repo, stage) for stage in stages):
                target = self.fs.join(self.path, *entry.relative_to(self.repo.cache.legacy.path).parts)
                if not self.fs.exists(target):
                    generic.copy(localfs, str(entry), self.fs, target)

    def _transfer(self, source: Any, target: Any, outs: Iterable[Any]) -> tuple[int, int]:
        """Copies what the target lacks; returns how many files it did not take, and how many the source lacks, too.

        It looks for each, as what DVC noted about a remote may be old.
        """
        from dvc_data.hashfile.transfer import transfer

        found = [out.get_used_objs(remote=self.name, force=True) for out in outs]
        objects = {info for each in found for infos in each.values() for info in infos}
        missing: set[Any] = set()
        failed = transfer(source, target, objects, validate_status=lambda status: missing.update(status.missing)).failed
        return len(failed), len(missing)


def restore_tracked(root: Path, folder: Path, *, may_differ: str) -> list[str]:
    """Writes the files of a folder under DVC that the tree lacks; others, such as new ones, stay as they are.

    Args:
        root: the repository.
        folder: in it, with a `.dvc` file beside it.
        may_differ: the name of files that may be others than DVC's.

    Returns:
        what it wrote, relative to the root.

    Raises:
        RewardsmithError: DVC does not give the files.
        DataError: a file of the folder is another one than DVC's.
    """
    from dvc.api import DVCFileSystem
    from dvc.exceptions import DvcException
    from dvc_data.index import DataIndexDirError

    named, written = folder.with_suffix(".dvc"), []
    try:
        tracked = DVCFileSystem(str(root))
        found = tracked.find(f"/{folder}", detail=True, dvc_only=True)
        for name in sorted(found):
            path = root / name.lstrip("/")
            if not path.exists():
                write_whole(path, tracked.read_text(name, encoding="utf-8"))
                written.append(name.lstrip("/"))
            elif path.name != may_differ and hashlib.md5(path.read_bytes()).hexdigest() != found[name]["md5"]:
                raise DataError(
                    f"differs from the file that {named} names, and records never change",
                    file=str(path),
                    remedy="Move it away: the next run restores it from DVC",
                )
        if not found:
            raise FileNotFoundError(f"{named} names no file")
    except (DvcException, DataIndexDirError, OSError) as error:
        raise RewardsmithError(
            f"neither DVC's cache nor a remote has the records of {named} ({error}). Without them the next evaluation "
            f"would count as the first. Fetch them: dvc remote add, dvc pull {named}; or take back the {named} whose "
            "records are here"
        ) from None
    return written
