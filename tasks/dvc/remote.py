"""A DVC remote that several machines share: what is known there, inputs pulled and checked, results pushed.

A result's key is DVC's: command (with the stage's version), digests of the inputs, paths of the outputs. Outputs are
pushed before the entry of DVC's run cache by which other machines know the result, so an entry on the remote has its
outputs there, whenever a machine dies.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from rlhf_core.errors import DataError, RecipeError, RewardsmithError
from tasks.dvc.cache_digests import damaged_outputs, has_locked_content, made_by_another_run, remove_with_cache
from tasks.dvc.internals import open_repo, run_folder, run_key, run_value
from tasks.dvc.lock_files import ROOT_FILE, locked_stage, locked_stages


class RemoteFailed(RewardsmithError):
    """A remote that did not take or give everything, for a reason that may pass."""


class Remote:
    """A DVC remote seen from one clone.

    Args:
        root: the clone.
        name: the remote, as `dvc remote add` named it; empty for the clone's default remote.

    Raises:
        RecipeError: there is no such remote.
    """

    def __init__(self, root: Path, name: str) -> None:
        self.root = root.resolve()
        self.repo = open_repo(self.root)
        self.name = name or str(self.repo.config["core"].get("remote", ""))
        known = sorted(self.repo.config["remote"])
        if self.name not in known:
            self.repo.close()
            wanted = f"no DVC remote '{self.name}'" if self.name else "this clone has no default DVC remote"
            raise RecipeError(
                f"{wanted}; known: {', '.join(known) or 'none'}. `dvc remote add -d NAME URL` makes one; commit it"
            )
        self.store = self.repo.cloud.get_remote_odb(self.name)
        entries = self.repo.cloud.get_remote_odb(self.name, hash_name="md5-dos2unix")
        self.fs, self.path = entries.fs, entries.path
        self.stages: dict[str, Any] = {}
        self._locked: dict[str, dict[str, Any]] = {}
        self._makers: dict[str, Any] = {}
        self._learned: list[Any] = []

    def close(self) -> None:
        self.repo.close()

    def check(self) -> None:
        """Writes, lists and removes a small file.

        Raises:
            RewardsmithError: this machine may not, or cannot, do that.
        """
        probe = self.fs.join(self.path, f".probe-{uuid.uuid4().hex}")
        try:
            self.fs.makedirs(self.path, exist_ok=True)
            self.fs.pipe_file(probe, b"")
            self.fs.find(self.fs.join(self.path, "runs", "00"))
        except Exception as error:  # each kind of store has errors of its own
            kind = RemoteFailed if isinstance(error, ConnectionError | TimeoutError) else RewardsmithError
            raise kind(
                f"remote '{self.name}' ({self.path}) cannot be written from here: {error or type(error).__name__}. "
                "Get permission to read and write there (or its keys, `dvc remote modify --local`), then run the same "
                "command again; finished work is kept in this clone"
            ) from None
        finally:
            with suppress(Exception):
                self.fs.rm_file(probe)

    def load(self, addresses: Iterable[str]) -> None:
        """Reads stages, and what dvc.lock says about them."""
        wanted = set(addresses)
        for file in {address.rpartition(":")[0] for address in wanted}:
            locked = locked_stages(self.root, file or ROOT_FILE)
            for stage in self.repo.stage.load_all(str(self.root / (file or ROOT_FILE))):
                address = f"{file}:{stage.name}" if file else stage.name
                if address in wanted:
                    self.stages[address] = stage
                    self._locked[address] = locked.get(stage.name, {})
                    self._makers |= {out.fs_path: out for out in stage.outs}

    def key(self, address: str) -> str:
        """Returns the key of a stage's result. What it reads from is known already.

        Raises:
            DataError: an input that no stage makes does not exist.
        """
        from dvc.dependency.base import DependencyDoesNotExistError
        from dvc.stage.serialize import to_single_stage_lockfile

        stage = self.stages[address]
        for dep in stage.deps:
            maker = self._makers.get(dep.fs_path)
            if maker is not None:
                dep.hash_info, dep.meta = maker.hash_info, maker.meta
                continue
            try:
                dep.save()
            except DependencyDoesNotExistError:
                raise DataError("input does not exist", file=dep.def_path, remedy="Is all committed?") from None
        return run_key(to_single_stage_lockfile(stage))

    def learn(self, address: str) -> bool:
        """Returns whether the remote has the stage's result; its digests are then known here, see `write_locks`.

        Raises:
            DataError: an input that no stage makes does not exist.
            RemoteFailed: the remote cannot be asked now.
        """
        key = self.key(address)
        try:
            return self._learn(self.stages[address], key, self._locked[address])
        except Exception as error:  # each kind of store has errors of its own
            raise RemoteFailed(
                f"remote '{self.name}' ({self.path}) cannot be asked: {error or type(error).__name__}"
            ) from error

    def _learn(self, stage: Any, key: str, own: dict[str, Any]) -> bool:
        if own and run_key(own) == key and self._has(own):
            self._fill(stage, own)
            self._push_entry(stage)
            return True
        for entry in self._entries(key):
            if run_key(entry) == key and self._has(entry):
                self._fill(stage, entry)
                self._learned.append(stage)
                return True
        return False

    def result_name(self, address: str) -> str:
        """Returns the name of a stage's known result, by which other machines find it on the remote."""
        from dvc.stage.serialize import to_single_stage_lockfile

        entry = to_single_stage_lockfile(self.stages[address])
        return f"{run_key(entry)}/{run_value(entry)}"

    def take_over(self, address: str, name: str) -> None:
        """Takes over a result that another machine named with `result_name`; see `write_locks`.

        Raises:
            RemoteFailed: the remote has no such result, or cannot be asked now.
        """
        stage = self.stages[address]
        try:
            for entry in self._entries(name.partition("/")[0]):
                self._fill(stage, entry)
                if self.result_name(address) == name:
                    self._learned.append(stage)
                    return
        except Exception as error:  # each kind of store has errors of its own
            raise RemoteFailed(f"remote '{self.name}' ({self.path}) cannot be asked: {error}") from error
        raise RemoteFailed(f"remote '{self.name}' ({self.path}) no longer has the result {name[:20]} of {address}")

    def write_locks(self) -> None:
        """Writes what was learned into dvc.lock."""
        files: dict[str, list[Any]] = {}
        for stage in self._learned:
            files.setdefault(stage.path, []).append(stage)
        if files:
            with self.repo.lock:
                for stages in files.values():
                    stages[0].dvcfile.dump_stages(stages, update_pipeline=False)
        self._learned = []

    def push(self, addresses: Sequence[str]) -> None:
        """Pushes the results of stages, then their run-cache entries; what is there already is left alone.

        Raises:
            RewardsmithError: results that are not in the cache, or a remote that does not take them.
        """
        stages = [self.stages[address] for address in addresses]
        outs = [out for stage in stages for out in stage.outs]
        try:
            failed, missing = self._transfer(self.repo.cache.local, self.store, outs)
            reason = f"it did not take {failed} file(s)" if failed else ""
            lost = [] if failed else [out.def_path for out in outs if not self.store.exists(out.hash_info.value)]
        except Exception as error:  # each kind of store has errors of its own
            missing, reason, lost = 0, str(error) or type(error).__name__, []
        if reason:
            self.check()
            raise RemoteFailed(f"pushing to remote '{self.name}' failed: {reason}. The results are kept in this clone")
        if missing or lost:
            raise DataError(
                f"parts of {', '.join((lost or list(addresses))[:3])} are neither in this clone's cache nor on remote "
                f"'{self.name}'",
                remedy="Push from the clone that made them (`dvc push --run-cache`), or remove them to run it again",
            )
        for stage in stages:
            self._push_entry(stage)

    def pull(self, addresses: Iterable[str]) -> None:
        """Brings the results of stages into this clone."""
        self._fetch_outputs([out for address in addresses for out in self.stages[address].outs])

    def drop_foreign(self, address: str) -> list[str]:
        """Returns the pulled results of a stage that another stage made, or that were made from other inputs than this
        clone has, by their records; takes the entry that named them off the remote and out of this clone.

        Raises:
            RemoteFailed: the remote does not let its entry go.
        """
        stage = self.stages[address]
        found = [str(out) for out in stage.outs if made_by_another_run(out)]
        if not found:
            return []
        outs = {out.def_path: out.hash_info.value for out in stage.outs}
        try:
            for path, entry in list(self._entry_files(self.key(address))):
                if {out["path"]: out.get("md5") for out in entry["outs"]} == outs:
                    self.fs.rm_file(path)
        except Exception as error:  # each kind of store has errors of its own
            raise RemoteFailed(f"remote '{self.name}' does not let go of an entry of another run: {error}") from None
        self.discard(address)
        self._locked[address] = {}
        return found

    def pull_inputs(self, address: str) -> None:
        """Brings what a stage reads into this clone and checks every digest by content.

        Raises:
            DataError: an input that cannot be had, or whose content is not what dvc.lock says.
        """
        inputs = [self._makers[dep.fs_path] for dep in self.stages[address].deps if dep.fs_path in self._makers]
        self._fetch_outputs([out for out in inputs if not has_locked_content(out)])

    def _fetch_outputs(self, outs: Sequence[Any]) -> None:
        """Pulls outputs, puts them into the tree and checks every digest by content; a damaged copy in the cache is
        pulled again once.

        Raises:
            DataError: an output that cannot be had, or whose content is not what dvc.lock says.
        """
        for _ in range(2):
            self._pull(outs)
            outs = damaged_outputs(outs)
            for out in outs:
                remove_with_cache(self.repo, out)
            if not outs:
                return
        raise DataError(
            f"its content is not what dvc.lock says ({outs[0].hash_info.value})",
            file=outs[0].def_path,
            remedy="The local copy was removed and nothing was run. Run the same command again; if it is damaged on "
            f"remote '{self.name}', remove it there and push it again from the clone that made it",
        )

    def _pull(self, outs: Sequence[Any]) -> None:
        """Copies outputs into the cache and puts them into the tree."""
        from dvc.exceptions import DvcException

        if not outs:
            return
        try:
            failed = any(self._transfer(self.store, self.repo.cache.local, outs))
        except Exception as error:  # each kind of store has errors of its own
            raise RemoteFailed(f"pulling from remote '{self.name}' failed: {error or type(error).__name__}") from None
        for out in outs:
            if failed or not self.repo.cache.local.exists(out.hash_info.value):
                raise DataError(
                    f"its content ({out.hash_info.value}) cannot be pulled from remote '{self.name}'",
                    file=out.def_path,
                    remedy="Push it from the clone that made it (`dvc push --run-cache`)",
                )
        with self.repo.lock:
            for out in outs:
                try:
                    out.checkout()
                except (DvcException, OSError) as error:
                    raise DataError(
                        f"cannot be put into the tree: {error}",
                        file=out.def_path,
                        remedy="Move the existing file or folder away",
                    ) from None

    def _transfer(self, source: Any, target: Any, outs: Sequence[Any]) -> tuple[int, int]:
        """Copies what the target lacks; returns how many files it did not take, and how many the source lacks, too.

        It looks for each, as what DVC noted about a remote may be old.
        """
        from dvc_data.hashfile.transfer import transfer

        found = [out.get_used_objs(remote=self.name, force=True) for out in outs]
        objects = {info for each in found for infos in each.values() for info in infos}
        missing: set[Any] = set()
        failed = transfer(source, target, objects, validate_status=lambda status: missing.update(status.missing)).failed
        return len(failed), len(missing)

    def _has(self, entry: Mapping[str, Any]) -> bool:
        return all("md5" in out and self.store.exists(out["md5"]) for out in entry.get("outs", []))

    def _fill(self, stage: Any, entry: Mapping[str, Any]) -> None:
        from dvc.stage.loader import StageLoader

        StageLoader.fill_from_lock(stage, dict(entry))
        for out in stage.outs:
            out.obj = None

    def _entries(self, key: str) -> Iterator[dict[str, Any]]:
        """Yields the remote's run-cache entries of a key, in an order that is the same everywhere."""
        for _, entry in self._entry_files(key):
            yield entry

    def _entry_files(self, key: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yields the path of each of these entries, too."""
        from dvc.schema import COMPILED_LOCK_FILE_STAGE_SCHEMA
        from voluptuous import Invalid

        folder = self.fs.join(self.path, *run_folder(key).parts)
        if not self.fs.exists(folder):
            return
        for path in sorted(self.fs.find(folder)):
            with suppress(yaml.YAMLError, ValueError, FileNotFoundError, RecursionError, Invalid):
                entry = COMPILED_LOCK_FILE_STAGE_SCHEMA(yaml.safe_load(self.fs.cat_file(path).decode("utf-8")))
                if entry.get("outs"):
                    yield path, entry

    def _push_entry(self, stage: Any) -> None:
        """Writes a stage's run-cache entry to the remote, whole or not at all."""
        from dvc.fs import generic, localfs
        from dvc.stage.serialize import to_single_stage_lockfile
        from dvc.utils.serialize import dump_yaml

        entry = to_single_stage_lockfile(stage)
        key = run_key(entry)
        target = self.fs.join(self.path, *run_folder(key).parts, run_value(entry))
        try:
            if self.fs.exists(target):
                return
            with tempfile.NamedTemporaryFile() as file:
                dump_yaml(file.name, entry)
                generic.copy(localfs, file.name, self.fs, target)
        except Exception as error:  # each kind of store has errors of its own
            self.check()
            raise RemoteFailed(f"pushing to remote '{self.name}' failed: {error}") from None

    def discard(self, address: str) -> None:
        """Takes a stage's result out of dvc.lock and of the run cache of this clone."""
        from dvc.dvcfile import Lockfile

        stage, entry = self.stages[address], locked_stage(self.root, address)
        path = Path(self.repo.cache.legacy.path) / run_folder(run_key(entry)) / run_value(entry)
        with self.repo.lock:
            path.unlink(missing_ok=True)
            Lockfile(self.repo, str(Path(stage.path).with_suffix(".lock"))).remove_stage(stage)
