"""Results of stages in DVC: taken from its cache, or committed once the stage's command has run.

It does what `dvc repro --single-item` does, in two steps around a command that the scheduler runs, and leaves the same
`dvc.lock` and run cache. What comes from the cache is compared once with the record of the run that made it; a damaged
result, or one of other inputs, is removed, and the stage runs.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rlhf_core.errors import RewardsmithError
from tasks.dvc.cache_digests import damaged_outputs, drop_damaged_copy, made_by_another_run, remove_with_cache
from tasks.dvc.internals import open_repo, save_run
from tasks.dvc.lock_files import ROOT_FILE
from tasks.dvc.stale import Look

#: Ends of a stage.
RAN, RESTORED, UNCHANGED = "ran", "restored", "unchanged"


class DvcFailed(RewardsmithError):
    """A refusal of DVC.

    Args:
        message: DVC's own words, with the cause.
        busy: whether another process of DVC had what was needed, so that another try may succeed.
    """

    def __init__(self, message: str, *, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


class StageResults:
    """The results of some stages of a repository; it can be used from several threads.

    Args:
        root: the repository.
        addresses: the stages as DVC names them.
    """

    def __init__(self, root: Path, addresses: Iterable[str]) -> None:
        from dvc.dvcfile import load_file

        logging.getLogger("dvc").setLevel(logging.WARNING)
        self.repo, self._turn = open_repo(root), threading.RLock()
        self.repo.scm_context.quiet = True  # no advice to add dvc.lock to git, which would follow every stage
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

    @contextmanager
    def result(self, address: str) -> Iterator[str]:
        """Yields RESTORED or UNCHANGED for a stage that has its result, else RAN: then the block runs its command, and
        the outputs are committed at the block's end.

        Raises:
            DvcFailed: an input or an output is missing, or another process of DVC works on them.
            RewardsmithError: an input changed while the command ran; nothing is committed.
        """
        from dvc.exceptions import DvcException
        from dvc.lock import LockError

        try:
            with self._result(address) as outcome:
                yield outcome
        except DvcException as error:
            cause = f": {error.__cause__}" if error.__cause__ else ""
            raise DvcFailed(f"{error}{cause}", busy=isinstance(error, LockError)) from error

    @contextmanager
    def _result(self, address: str) -> Iterator[str]:
        stage = self._stages[address]
        if (found := self.restored(address)) is not None:
            yield found
            return
        with ExitStack() as held:
            with self._turn, self.repo.lock:
                stage.save_deps()
                inputs = [(dep, dep.hash_info) for dep in stage.deps]
                held.enter_context(self._locked(stage))
            yield RAN
            with self._turn, self.repo.lock:
                if changed := [str(dep) for dep, before in inputs if dep.get_hash() != before]:
                    raise RewardsmithError(
                        f"{', '.join(changed[:3])} changed while stage {address} ran, so its result has no known "
                        "inputs and is not committed. Run the same command again"
                    )
                self._commit(stage)

    def restored(self, address: str) -> str | None:
        """Returns UNCHANGED for a current stage and RESTORED for one whose result was taken from DVC's cache; None for
        one that has to run."""
        from dvc.exceptions import DvcException

        stage = self._stages[address]
        with self._turn, self.repo.lock:
            if not stage.changed():
                return UNCHANGED
            cached = Look(self.repo).restorable(stage)
            stage.remove_outs()
            try:
                if cached:
                    stage.checkout(force=True)
                    wrong = self._dropped(stage)
                    cached = not wrong
            except DvcException as error:
                print(f"warning: {address} cannot be taken from DVC's cache ({error}); it runs", flush=True)
                cached = False
            if cached:
                self._commit(stage)
                return RESTORED
            stage.remove_outs()
            for out in stage.outs:
                if out.hash_info:  # a list of a folder's files that DVC could not read would stay
                    drop_damaged_copy(Path(self.repo.cache.local.oid_to_path(out.hash_info.value)))
        return None

    def _dropped(self, stage: Any) -> list[Any]:
        """Returns the restored outputs that their record does not fit; damaged ones are removed from the cache."""
        damaged = damaged_outputs(stage.outs)
        foreign = [out for out in stage.outs if out not in damaged and made_by_another_run(out)]
        for out in damaged:
            print(f"warning: the copy of {out} in DVC's cache is damaged and was removed; the stage runs", flush=True)
            remove_with_cache(self.repo, out)
        for out in foreign:
            print(f"warning: {out} in DVC's cache is of another stage or of other inputs; the stage runs", flush=True)
        return [*damaged, *foreign]

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
        with self._turn:  # DVC's file of locks is not made for threads
            lock.__enter__()
        try:
            yield
        finally:
            with self._turn:
                lock.__exit__(None, None, None)
