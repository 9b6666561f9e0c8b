"""Results of stages in DVC: taken from its cache or a remote, or committed once the stage's command has run.

It does what `dvc repro --single-item` does, in two steps around a command that the scheduler runs, and leaves the same
`dvc.lock` and run cache. What comes from the cache is compared once with its digests; a damaged copy is removed, and
the stage runs.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.errors import DataError, RewardsmithError
from tasks.dvc.internals import ROOT_FILE, drop_damaged, open_repo, run_key, save_run
from tasks.dvc.remote import Remote
from tasks.dvc.stale import Inspection

#: Ends of a stage.
RAN, RESTORED, UNCHANGED = "ran", "restored", "unchanged"


class StageResults:
    """The results of some stages of a repository; it can be used from several threads.

    Args:
        root: the repository.
        addresses: the stages as DVC names them.
        remote: where results are also taken from, and pushed to; empty for the default remote, None for none.
    """

    def __init__(self, root: Path, addresses: Iterable[str], remote: str | None = None) -> None:
        from dvc.dvcfile import load_file

        logging.getLogger("dvc").setLevel(logging.WARNING)
        self.repo, self._lock = open_repo(root), threading.RLock()
        self.repo.scm_context.quiet = True  # no advice to add dvc.lock to git, which would follow every stage
        try:
            self.remote = None if remote is None else Remote(self.repo, remote)
        except RewardsmithError:
            self.close()
            raise
        self._stages: dict[str, Any] = {}
        files: dict[str, Any] = {}
        for address in addresses:
            file, _, name = address.rpartition(":")
            if file not in files:
                files[file] = load_file(self.repo, str(root / (file or ROOT_FILE))).stages
            self._stages[address] = files[file][name]

    def close(self) -> None:
        self.repo.close()

    def command(self, address: str) -> str:
        """Returns the command of a stage."""
        return str(self._stages[address].cmd)

    def entry(self, address: str) -> dict[str, Any]:
        """Returns a stage as dvc.lock holds it."""
        from dvc.stage.serialize import to_single_stage_lockfile

        return dict(to_single_stage_lockfile(self._stages[address]))

    def key(self, address: str) -> str:
        """Returns the key of a stage's result, given its inputs in the tree.

        Raises:
            DataError: an input does not exist.
        """
        from dvc.dependency.base import DependencyDoesNotExistError

        with self._lock, self.repo.lock:
            try:
                self._stages[address].save_deps()
            except DependencyDoesNotExistError as error:
                raise DataError("input does not exist", file=str(error.path), remedy="Is all committed?") from None
            return run_key(self.entry(address))

    @contextmanager
    def result(self, address: str) -> Iterator[str]:
        """Yields RESTORED or UNCHANGED for a stage that has its result, else RAN: then the block runs its command, and
        the outputs are committed at the block's end.

        Raises:
            RewardsmithError: an input or an output is missing, another process of DVC works on them, or an input
                changed while the command ran; nothing is committed.
        """
        from dvc.exceptions import DvcException

        stage = self._stages[address]
        try:
            if (found := self.restored(address)) is not None:
                yield found
                return
            with ExitStack() as held:
                with self._lock, self.repo.lock:
                    stage.save_deps()
                    inputs = [(dep, dep.hash_info) for dep in stage.deps]
                    held.enter_context(self._locked(stage))
                yield RAN
                with self._lock, self.repo.lock:
                    if changed := [str(dep) for dep, before in inputs if dep.get_hash() != before]:
                        raise RewardsmithError(
                            f"{', '.join(changed[:3])} changed while stage {address} ran, so its result has no known "
                            "inputs and is not committed. Run the same command again"
                        )
                    self._commit(stage)
        except DvcException as error:
            cause = f": {error.__cause__}" if error.__cause__ else ""
            raise RewardsmithError(f"{error}{cause}") from error

    def restored(self, address: str) -> str | None:
        """Returns UNCHANGED for a current stage and RESTORED for one whose result was taken from DVC's cache or the
        remote; None for one that has to run.

        Raises:
            RemoteFailed: the remote cannot be asked now.
        """
        from dvc.exceptions import DvcException

        stage = self._stages[address]
        with self._lock, self.repo.lock:
            if not stage.changed():
                return UNCHANGED
            restorable = Inspection(self.repo).restorable(stage, self.remote)
            for out in drop_damaged(self.repo, stage.outs, whole=restorable):
                print(
                    f"warning: the copy of {out} in DVC's cache is damaged and was removed; the stage runs", flush=True
                )
                restorable = False
            stage.remove_outs()
            if restorable:
                try:
                    stage.checkout(force=True)
                    self._commit(stage)
                    return RESTORED
                except DvcException as error:
                    print(f"warning: {address} cannot be taken from DVC's cache ({error}); it runs", flush=True)
                    stage.remove_outs()
        return None

    def take_inputs(self, entries: Mapping[str, Mapping[str, Any]]) -> None:
        """Brings results that another clone has pushed into this one, and into dvc.lock.

        Args:
            entries: the stages that made them, with what `entry` says of each in the other clone.

        Raises:
            DataError: a result that cannot be had, or whose content is not what its stage made.
            RemoteFailed: the remote cannot be asked now.
        """
        from dvc.exceptions import DvcException
        from dvc.stage.loader import StageLoader

        assert self.remote is not None
        with self._lock, self.repo.lock:
            for address, entry in entries.items():
                stage = self._stages[address]
                StageLoader.fill_from_lock(stage, dict(entry))
                for out in stage.outs:
                    out.obj = None
                if any(not out.exists or out.get_hash() != out.hash_info for out in stage.outs):
                    drop_damaged(self.repo, stage.outs)
                    self.remote.pull(stage.outs)
                    if wrong := drop_damaged(self.repo, stage.outs):
                        raise DataError(
                            f"its content is not what dvc.lock says ({wrong[0].hash_info.value})",
                            file=wrong[0].def_path,
                            remedy="The local copy was removed and nothing was run. Run the same command again; if it "
                            f"is damaged on remote '{self.remote.name}', remove it there and push it again from the "
                            "clone that made it",
                        )
                    try:
                        if not stage.outs_cached():
                            raise FileNotFoundError("it is not there")
                        stage.checkout(force=True)
                    except (DvcException, OSError) as error:
                        raise DataError(
                            f"cannot be pulled from remote '{self.remote.name}' and put into the tree: {error}",
                            file=stage.outs[0].def_path,
                            remedy="Push it from the clone that made it (`dvc push --run-cache`)",
                        ) from None
                stage.dump(update_pipeline=False)

    def push(self, addresses: Iterable[str]) -> None:
        """Pushes the results of stages to the remote.

        Raises:
            RewardsmithError: results that are not in the cache, or a remote that does not take them.
        """
        assert self.remote is not None
        with self._lock:
            self.remote.push([self._stages[address] for address in addresses])

    def _commit(self, stage: Any) -> None:
        """Writes a stage's digests into dvc.lock and the run cache, and its outputs into the cache."""
        stage.save(run_cache=False)
        save_run(self.repo, stage)
        stage.commit()
        stage.dump(update_pipeline=False)

    @contextmanager
    def _locked(self, stage: Any) -> Iterator[None]:
        """Keeps other commands of DVC from a stage's inputs and outputs."""
        from dvc.rwlock import rwlock

        paths = [[part.fs_path for part in parts] for parts in (stage.deps, stage.outs)]
        hardlink = self.repo.config["core"].get("hardlink_lock", False)
        lock = rwlock(self.repo.tmp_dir, self.repo.fs, " ".join(sys.argv), *paths, hardlink)
        with self._lock:  # DVC's file of locks is not made for threads
            lock.__enter__()
        try:
            yield
        finally:
            with self._lock:
                lock.__exit__(None, None, None)
